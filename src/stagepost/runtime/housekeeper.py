"""The thread that keeps house for an incarnation, with a session of its own.

It gives back what waits too long in the prefetchers, takes over from the dead, and lets replies expire that no process
reads. At the end it gives back the rest. It may wait for the database for as long as a slow stage holds it. Therefore
neither the heartbeat nor the thread that hears signals does any of this.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreError
from stagepost.liveness.detector import PAUSED_AFTER_SECONDS
from stagepost.liveness.incarnation import listening, owner_at
from stagepost.liveness.takeover import Takeover
from stagepost.ports.liveness import EVERY_APP, Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import queue_commit_of, takeover_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.prefetch import HELD_SECONDS_MAX, Prefetcher
from stagepost.runtime.service import Service
from stagepost.transaction.database_wait import log_unavailable, retried
from stagepost.transaction.outcome import Expired
from stagepost.transaction.settling import Settlement

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.25
SWEEP_SECONDS = 1.0
ORPHANS_SECONDS = 5.0
RECENT_SECONDS = 3 * SWEEP_SECONDS
AT_ONCE_MAX = 100


class Housekeeper(Service):
    """The housekeeping of one incarnation. After ``stop`` it gives back the messages not begun; ``finish`` ends it.

    It calls ``on_alone`` after the incarnation that this one ``needs`` has left.
    """

    def __init__(
        self,
        engine: Engine,
        prefetchers: Sequence[Prefetcher],
        incarnation: Incarnation,
        node: str,
        *,
        paused_after_seconds: float = PAUSED_AFTER_SECONDS,
        needs: str | None = None,
        on_alone: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("housekeeper", self._keep_house)
        self._engine = engine
        self._prefetchers = prefetchers
        self._owner = incarnation.owner
        self._node = node
        self._paused_after_seconds = paused_after_seconds
        self._needs = needs
        self._on_alone = on_alone
        self._nothing_runs = threading.Event()
        self._has_broken = False
        self._saw_work_at = [-math.inf] * len(prefetchers)

    def sees_work(self, prefetcher: Prefetcher) -> bool:
        """Say whether its last look, not long ago, found claimable work for a prefetcher."""
        seen_at = self._saw_work_at[self._prefetchers.index(prefetcher)]
        return self._engine.clock.monotonic() - seen_at < RECENT_SECONDS

    def finish(self, seconds: float | None = None, *, has_broken: bool = False) -> bool:
        """Give back whatever is still held, now that nothing runs any more, and end. False if that takes longer.

        If a thread ``has_broken`` down, its message is left to the processes that take over: it has died.
        """
        self._has_broken = has_broken
        self.stop()
        self._nothing_runs.set()
        return self.join(seconds)

    def _keep_house(self) -> None:
        access = retried(logger, self._engine.access, self, (StoreError,))
        if access is None:
            # A process that takes over gives back what is held.
            return
        detector = self._engine.detector(paused_after_seconds=self._paused_after_seconds)
        takeover = takeover_of(self._engine, access, self._node, detector)
        orphans = Orphans(self._engine, access, self._owner, self._node)
        self._take_turns(access, takeover, orphans)
        self._give_back(access)
        self._nothing_runs.wait()
        if not self._has_broken:
            self._try(
                lambda: access.claimer.release(access.session.queue.owned(self._owner, is_unattended=True), self._node)
            )
        detector.close()
        orphans.close()
        access.close()

    def _take_turns(self, access: Access, takeover: Takeover, orphans: Orphans) -> None:
        clock = self._engine.clock
        # At once: this process may replace one that died.
        last_sweep = last_orphans = -math.inf
        while self.wait(TURN_SECONDS):
            self._give_back(access, held_longer_than=HELD_SECONDS_MAX)
            if clock.monotonic() - last_sweep > SWEEP_SECONDS:
                self._try(lambda: self._look(access, takeover))
                last_sweep = clock.monotonic()
            if clock.monotonic() - last_orphans > ORPHANS_SECONDS:
                self._try(orphans.sweep)
                last_orphans = clock.monotonic()

    def _look(self, access: Access, takeover: Takeover) -> None:
        takeover.sweep([self._owner])
        if self._needs is not None and self._needs not in takeover.seen:
            self._on_alone()
        for index, each in enumerate(self._prefetchers):
            if access.claimer.pending(each.stages).ready:
                self._saw_work_at[index] = self._engine.clock.monotonic()

    def _give_back(self, access: Access, *, held_longer_than: float = 0.0) -> None:
        for each in self._prefetchers:
            self._try(partial(each.give_back, access.claimer, held_longer_than=held_longer_than))

    def _try(self, chore: Callable[[], object]) -> None:
        try:
            chore()
        except StoreError as error:
            # The next turn tries again; after the last one, a process that takes over does.
            log_unavailable(logger, error, TURN_SECONDS)


class Orphans:
    """Lets replies to processes that are gone expire. A worker of any app does so."""

    def __init__(self, engine: Engine, access: Access, owner: str, node: str) -> None:
        self._queue = access.session.queue
        self._claimer = access.claimer
        self._owner = owner
        self._node = node
        self._settlement = Settlement(queue_commit_of(engine, access, node))
        self._detector = engine.detector(EVERY_APP)
        self._has_left_some = False

    def sweep(self) -> int:
        """Sweep once, and return how many replies expired. The next sweep expires the rest. Raises ``StoreError``."""
        held = self._held() if self._has_left_some else []
        self._has_left_some = True
        expired = self._expire(held) + self._expire_new()
        self._has_left_some = False
        return expired

    def _held(self) -> list[Claim]:
        return [each for each in self._queue.owned(self._owner) if owner_at(each.stage) is not None]

    def _expire_new(self) -> int:
        # The addresses are read before the living. In the other order, a process that began between would look dead.
        asking = {each: owner for each in self._queue.waiting_stages() if (owner := owner_at(each)) is not None}
        if not asking:
            return 0
        living = {each.record.owner for each in self._detector.look() if each.state != "dead"}
        gone = [address for address, owner in asking.items() if owner not in living | listening]
        return sum(
            self._expire(self._claimer.claim([address], AT_ONCE_MAX, self._owner, self._node)) for address in gone
        )

    def close(self) -> None:
        self._detector.close()

    def _expire(self, claims: Sequence[Claim]) -> int:
        for claim in claims:
            self._settlement.settle(None, claim, Expired(f"{owner_at(claim.stage)}, which asked, is gone"))
        for owner, count in Counter(owner_at(claim.stage) for claim in claims).items():
            logger.warning("%d replies to %s expired, which is gone", count, owner, extra={"event": "replies-expired"})
        return len(claims)
