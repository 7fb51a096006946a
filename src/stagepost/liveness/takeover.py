"""Take over the claims of dead and paused incarnations.

A message that a dead process was running counts as a death and becomes a suspect. A message that had exceeded its time
limit counts as a failure. All other claims are given back and count as nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.errors import TimeLimitExceeded
from stagepost.liveness.detector import FailureDetector, PeerStatus
from stagepost.liveness.incarnation import listening
from stagepost.ports.liveness import RunState
from stagepost.recovery.suspicion import pause_after_death
from stagepost.transaction.claiming import Claimer
from stagepost.transaction.outcome import Died, failure
from stagepost.transaction.outcome_log import log_outcome
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage

logger = logging.getLogger(__name__)

Fence = tuple[int, int]


class Takeover:
    """Takes over from one app. Several processes may sweep at once: the fence admits one of them for each message.

    ``app_name`` is the app to take over from. ``stages`` are those of the app that takes over; messages at other stages
    are given back. ``seen`` are the owners that the last sweep found, dead ones included.
    """

    def __init__(
        self,
        app_name: str,
        stages: Mapping[str, Stage],
        claimer: Claimer,
        queue_commit: QueueCommit,
        detector: FailureDetector,
        random: Random,
    ) -> None:
        self._app_name = app_name
        self._stages = stages
        self._claimer = claimer
        self._queue = queue_commit.session.queue
        self._node = queue_commit.node
        self._settlement = Settlement(queue_commit)
        self._detector = detector
        self._random = random
        self.seen: set[str] = set()

    def sweep(self, mine: Sequence[str] = ()) -> int:
        """Take over once, and return how many messages moved. ``mine`` are the caller's own incarnations."""
        # Read the owners before the living processes. In the other order, a process that starts in between looks dead.
        owners = {owner for owner in self._queue.owners() if owner.startswith(f"{self._app_name}/")}
        found = self._detector.look()
        self.seen = {each.record.owner for each in found}
        moved = 0
        for each in found:
            if each.state == "dead":
                moved += self._take_over_dead(each)
            elif each.state == "paused":
                moved += self._settle(each.record.owner, {}, each)
        for owner in owners - self.seen - set(mine) - listening:
            moved += self._settle(owner, {}, None)
        return moved

    def _take_over_dead(self, peer: PeerStatus) -> int:
        running = {(each.row, each.deliveries): each.state for each in peer.record.running}
        moved = self._settle(peer.record.owner, running, peer)
        self._detector.forget(peer)
        return moved

    def _settle(self, owner: str, running: dict[Fence, RunState], peer: PeerStatus | None) -> int:
        is_paused = peer is not None and peer.state == "paused"
        claims = self._queue.owned(owner, is_unattended=True, is_paused=is_paused)
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
                failed = failure(stage, claim, error, self._random)
                log_outcome(claim, self._settlement.settle(stage, claim, failed))
            elif claim.deaths == 0:
                died = Died(pause_after_death(1), f"its process died: {_name(peer, owner)}")
                log_outcome(claim, self._settlement.settle(stage, claim, died))
            else:
                returned.append(claim)
        self._claimer.release(returned, self._node)
        if claims:
            logger.warning(
                "%d messages of %s taken over, because it is %s",
                len(claims),
                _name(peer, owner),
                peer.state if peer else "gone",
                extra={"event": "taken-over", "owner": owner},
            )
        return len(claims)


def _name(peer: PeerStatus | None, owner: str) -> str:
    return peer.record.node if peer else owner
