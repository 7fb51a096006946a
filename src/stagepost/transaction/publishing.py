"""Who gets what was published: those who subscribe at the moment of the commit that publishes it.

A stage and an initiation both come through here, each in its own transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from stagepost.flow import ids
from stagepost.flow.initiation import Outgoing
from stagepost.transaction.seams import Recording


def addressed(session: Recording, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
    """In place of each publication a copy for each subscriber. The store is asked only where something is published.

    A copy's id follows from its publication's and its subscriber, and so depends on no other subscriber; its ordinal
    is its place among the copies that this subscriber gets.
    """
    topics = {each.topic for each in outgoing if each.topic is not None}
    if not topics:
        return outgoing
    subscribers: defaultdict[str, list[str]] = defaultdict(list)
    for subscription in sorted(session.subscriptions(sorted(topics))):
        subscribers[subscription.topic].append(subscription.subscriber)
    ordinals: Counter[str] = Counter()
    copies: list[Outgoing] = []
    for each in outgoing:
        if each.topic is None:
            copies.append(each)
            continue
        for subscriber in subscribers[each.topic]:
            copies.append(_copy(each, subscriber, ordinals[subscriber]))
            ordinals[subscriber] += 1
    return copies


def _copy(published: Outgoing, subscriber: str, ordinal: int) -> Outgoing:
    envelope = published.envelope
    message_id = ids.derived(envelope.message_id, envelope.to, 0, "publish", subscriber, 0)
    copy = msgspec.structs.replace(envelope, message_id=message_id, to=subscriber, ordinal=ordinal)
    return Outgoing(copy, published.due_at)
