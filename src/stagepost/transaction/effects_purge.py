"""Purge the log of effects: an effect goes after the last line of its flow has gone from the journal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from stagepost.ports.session import Session
from stagepost.transaction.purge_batches import Batches, Purged, PurgeListener, unobserved_purge


def purge_effects(
    apart: Session, queue: Session, *, dry_run: bool = False, listener: PurgeListener = unobserved_purge
) -> Iterator[Purged]:
    """Yield each batch after its commit. ``apart`` is a session of the log. Raises ``StoreError``.

    Effects are about as old as their rows, so the pass ends at the first batch that stays as a whole because of the
    journal. A batch that open flows keep, such as those of dead letters, does not end it.
    """

    def row_bytes() -> dict[str, int]:
        return {"effects": apart.effects.row_bytes()}

    batches = Batches(apart, is_dry=dry_run, listener=listener, row_bytes=row_bytes)
    after = 0
    while found := apart.effects.flows(after, batches.limit):
        after = found[-1][0]
        flows = sorted({flow for _, flow in found})
        open_flows = queue.retention.open_flows(flows)
        journalled = queue.retention.recent_flows(flows, 0) - open_flows
        ended = set(flows) - open_flows - journalled
        rows = sum(flow in ended for _, flow in found)
        removed = batches.remove(partial(apart.effects.remove_flows, sorted(ended)), rows)
        yield batches.purged("effects", "effects", removed, len(found) - rows)
        if not rows and len(journalled) > len(open_flows):
            break
