"""Purge the log of effects: a row goes after the last line of its flow has gone from the journal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from stagepost.ports.session import Session
from stagepost.transaction.purge_batches import Batches, Purged, PurgeListener, unobserved_purge
from stagepost.transaction.retention import DAY

# A replay from an archive holds the log of effects for so many hours of housekeeping.
HOLD_HOURS = DAY


def purge_effects(
    apart: Session, queue: Session, *, dry_run: bool = False, listener: PurgeListener = unobserved_purge
) -> Iterator[Purged]:
    """Yield each batch after its commit. ``apart`` is a session of the log. Raises ``StoreError``.

    Effects are about as old as their rows, so the pass ends at the first batch that stays as a whole because of the
    journal. A batch that open flows keep, such as those of dead letters, does not end it. A replay from an archive
    restores effects, and puts the message back in a later commit. It holds the log for that time.
    """

    def row_bytes() -> dict[str, int]:
        return {"effects": apart.effects.row_bytes()}

    batches = Batches(apart, is_dry=dry_run, listener=listener, row_bytes=row_bytes)
    yield from _purge_flows(apart, queue, batches)
    yield from _purge_tokens(apart, queue, batches)


def _purge_flows(apart: Session, queue: Session, batches: Batches) -> Iterator[Purged]:
    after = 0
    while found := apart.effects.flows(after, batches.limit):
        after = found[-1][0]
        if is_held(queue):
            break
        flows = sorted({flow for _, flow in found})
        journalled = queue.retention.recent_flows(flows, 0)
        open_flows = queue.retention.open_flows(flows)
        ended = set(flows) - open_flows - journalled
        rows = sum(flow in ended for _, flow in found)
        removed = batches.remove(partial(apart.effects.remove_flows, sorted(ended), after), rows)
        yield batches.purged("effects", "effects", removed, len(found) - rows)
        if not rows and len(journalled - open_flows) > len(open_flows):
            break


def _purge_tokens(apart: Session, queue: Session, batches: Batches) -> Iterator[Purged]:
    """Remove tokens of messages that called nothing. Those of a flow with effects go with the flow."""
    after = 0
    while found := apart.effects.tokens(after, batches.limit):
        after = found[-1].row
        if is_held(queue):
            break
        flows = queue.retention.flows_of([each.message_id for each in found])
        open_flows = queue.retention.open_flows(sorted(set(flows.values())))
        ended = [each for each in found if each.message_id not in flows]
        removed = batches.remove(partial(apart.effects.remove_tokens, ended), len(ended))
        yield batches.purged("tokens", "tokens of messages", removed, len(found) - len(ended))
        if not ended and len(set(flows.values()) - open_flows) > len(open_flows):
            break


def is_held(queue: Session) -> bool:
    """Say whether a replay from an archive may be restoring effects."""
    held = queue.archives.effects_held()
    return held is not None and queue.retention.hours() - held <= HOLD_HOURS
