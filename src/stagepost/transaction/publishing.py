"""Address publications to the subscribers that the store knows when the publishing transaction commits.

A stage and an initiation both use this module, each in its own transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from stagepost.flow import ids
from stagepost.flow.initiation import Outgoing
from stagepost.ports.session import JoinedSession


def addressed(session: JoinedSession, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
    """Replace each publication by a copy for each subscriber. Reads the store only if there is a publication.

    A copy's id follows from the publication's id and the subscriber, and so depends on no other subscriber. Its ordinal
    is its place among the copies for this subscriber.
    """
    topics = {each.topic for each in outgoing if each.topic is not None}
    if not topics:
        return outgoing
    subscribers: defaultdict[str, list[str]] = defaultdict(list)
    for subscription in sorted(session.subscriptions.listed(sorted(topics))):
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
