"""Taking over what the dead and the paused hold.

What a dead process was running counts as a death and becomes a suspect; what had exceeded its time limit counts as a
failure; all else it had claimed is given back and counts as nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.errors import TimeLimitExceeded
from stagepost.liveness.incarnation import RunState
from stagepost.liveness.replies import listening
from stagepost.liveness.survey import Found, Survey
from stagepost.liveness.telling import log_outcome
from stagepost.recovery.redelivery import Again, Bury
from stagepost.recovery.suspicion import pause_after_death
from stagepost.transaction.outcome import Buried, Died, Redelivered
from stagepost.transaction.settling import Settlement

logger = logging.getLogger(__name__)

Fence = tuple[int, int]


class Takeover:
    """Any process of the app may sweep, at any time, and several at once: the fence lets one of them through.

    ``app_name`` is the app whose processes it takes over from, where the app had another name then; ``seen`` are the
    owners that the last sweep found, dead ones included.
    """

    def __init__(self, app: App, access: Access, node: str, survey: Survey, *, app_name: str | None = None) -> None:
        self._app = app
        self._app_name = app_name or app.name
        self._survey = survey
        self._transport = access.transport
        self._node = node
        self.seen: set[str] = set()
        self._stages = app.stages()
        self._settlement = Settlement(access.session, access.transport, app.clock, node, app.listener)

    def sweep(self, mine: Sequence[str] = ()) -> int:
        """Take over once; returns how many messages moved. ``mine`` are the caller's own incarnations."""
        # First who holds something, then who lives: the other way round, one that came in between would look dead.
        owners = {owner for owner in self._transport.owners() if owner.startswith(f"{self._app_name}/")}
        found = self._survey.look()
        self.seen = {each.record.header.owner for each in found}
        moved = 0
        for each in found:
            if each.state == "dead":
                moved += self._bury_incarnation(each)
            elif each.state == "paused":
                moved += self._settle(each.record.header.owner, {}, each)
        for owner in owners - self.seen - set(mine) - listening:
            moved += self._settle(owner, {}, None)
        return moved

    def _bury_incarnation(self, found: Found) -> int:
        running = {(each.row, each.deliveries): each.state for each in found.record.running}
        moved = self._settle(found.record.header.owner, running, found)
        self._survey.forget(found)
        return moved

    def _settle(self, owner: str, running: dict[Fence, RunState], found: Found | None) -> int:
        is_paused = found is not None and found.state == "paused"
        claims = self._transport.unattended(owner, is_paused=is_paused)
        returned: list[Claim] = []
        for claim in claims:
            state = running.get((claim.row, claim.deliveries))
            stage = self._stages.get(claim.stage)
            if stage is None or state is None or state == "abandoned":
                returned.append(claim)
            elif state == "timed-out":
                error = TimeLimitExceeded(
                    f"the attempt took longer than the time_limit of {stage.time_limit_seconds:g} s and did not "
                    "yield; its process was replaced"
                )
                match stage.redelivery.decide(claim.failures + 1, error, self._app.random):
                    case Again(after):
                        log_outcome(claim, self._settlement.settle(stage, claim, Redelivered(after, error)))
                    case Bury(reason):
                        log_outcome(claim, self._settlement.settle(stage, claim, Buried(reason, error)))
            elif claim.deaths == 0:
                died = Died(pause_after_death(1), f"its process died: {_name(found, owner)}")
                log_outcome(claim, self._settlement.settle(stage, claim, died))
            else:
                returned.append(claim)
        self._transport.release(returned, self._node)
        if claims:
            logger.warning(
                "took over %d messages of %s, which is %s",
                len(claims),
                _name(found, owner),
                found.state if found else "gone",
                extra={"event": "taken-over", "owner": owner},
            )
        return len(claims)


def _name(found: Found | None, owner: str) -> str:
    return found.record.header.node if found else owner
