"""The simulated world: workers that claim, run, pause, and die, in an order that a seed decides.

A worker that is in the middle of an attempt is stopped at a named step while others act, so that attempts overlap as
they do between processes. What a worker holds is taken over when it dies, or while it is paused, by the same
``Takeover`` that real workers run; only who is alive is known here, and not read from lock files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random

from stagepost.app.app import App, engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreError, WorkerDied
from stagepost.liveness.detector import FailureDetector, PeerStatus
from stagepost.liveness.takeover import Takeover
from stagepost.ports.dead_letters import DeadLetter, Selection
from stagepost.ports.liveness import IncarnationRecord, Running, RunState
from stagepost.recovery.suspicion import is_deadly, pause_after_death
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import attempt_runner, queue_commit_of, relay_of
from stagepost.testing import ManualClock
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.outcome import Buried, Died
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.relay import Relay
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Halt, Step, unobserved
from tests.simulation.faults import FaultySession
from tests.simulation.flows import HandlerKillsItsProcess

DEPTH_MAX = 3
# Of the worker that finishes the work; more would mean that it never ends.
TURNS_MAX = 10_000


class RecordKeeper:
    """Keeps the record of what runs, as the lock file does."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def started(self, claim: Claim, time_limit_seconds: float) -> None:
        self._worker.running = claim

    def ended(self, *, is_settled: bool) -> None:
        if not self._worker.is_dead:
            self._worker.running = None

    def handled(self) -> None: ...

    def handling(self, interrupt: Callable[[], None] | None) -> nullcontext[None]:
        return nullcontext()

    def limited(self, seconds: float) -> nullcontext[None]:
        return nullcontext()

    def waiting(self) -> nullcontext[None]:
        return nullcontext()


@dataclass
class Worker:
    """``held`` is what it claimed and has not begun, ``running`` what its record says, ``busy`` that it is stopped at a
    step, somewhere up the stack of the simulation."""

    owner: str
    access: Access
    transaction: AttemptRunner | None = None
    relay: Relay | None = None
    held: list[Claim] = field(default_factory=list)
    running: Claim | None = None
    is_dead: bool = False
    is_paused: bool = False
    is_busy: bool = False

    def wait(self, seconds: float) -> bool:
        return False


class Census(FailureDetector):
    """Knows who is alive."""

    def __init__(self, world: World) -> None:
        self._world = world

    def close(self) -> None:
        """It holds nothing open."""

    def look(self) -> list[PeerStatus]:
        found = []
        for worker in self._world.workers:
            state: RunState = "running"
            running = (Running(state, worker.running.row, worker.running.deliveries),) if worker.running else ()
            record = IncarnationRecord(
                worker.owner, worker.owner, worker.owner, 1, 0, 0, not worker.is_dead, worker.is_dead, running
            )
            found.append(PeerStatus("dead" if worker.is_dead else "paused" if worker.is_paused else "alive", record))
        return found

    def forget(self, found: PeerStatus) -> None:
        self._world.workers = [each for each in self._world.workers if each.owner != found.record.owner]


class World:
    def __init__(self, app: App, seed: int, *, fault_rate: float, crash_rate: float) -> None:
        self.app = app
        self.random = Random(seed)
        self.workers: list[Worker] = []
        self._stages = engine_of(app).stages()
        self._fault_rate = fault_rate
        self._crash_rate = crash_rate
        self._born = 0
        self._depth = 0
        self._is_healed = False
        for store in (engine_of(app).store, engine_of(app).databases.business):
            if store is not None:
                store.writer_timeout_seconds = 0.0  # type: ignore[attr-defined]  # a toy store: a writer never waits here

    @property
    def clock(self) -> ManualClock:
        clock = engine_of(self.app).clock
        assert isinstance(clock, ManualClock)
        return clock

    def act(self) -> None:
        """One thing happens, anywhere."""
        idle = [each for each in self.workers if not each.is_busy and not each.is_dead]
        acts: list[Callable[[], object]] = [self._advance]
        if len(self.workers) < 4:
            acts.append(self.spawn)
        if idle:
            worker = self.random.choice(idle)
            acts += [lambda: self._claim(worker), lambda: self._run(worker), lambda: self._run(worker)]
            acts += [lambda: self._sweep(worker), lambda: self._suspect(worker), lambda: self._give_back(worker)]
            acts.append(lambda: self._toggle_pause(worker))
            if worker.relay is not None:
                acts.append(lambda: self._relay(worker))
            if self.random.random() < self._crash_rate:
                acts.append(lambda: self._die(worker))
        self.random.choice(acts)()

    def heal(self) -> None:
        """No more faults; everybody who is left dies, and one worker cleans up and finishes the work."""
        self._fault_rate = self._crash_rate = 0.0
        self._is_healed = True
        for worker in self.workers:
            self._die(worker)
        last = self.spawn()
        for _ in range(TURNS_MAX):
            self._sweep(last)
            self._relay(last)
            self._claim(last)
            while last.held:
                self._run(last)
            while not last.is_dead and self._suspect(last):
                pass
            pending = last.access.claimer.pending(list(self._stages))
            if pending.is_drained:
                return
            due = [at for at in (pending.next_due_at, pending.next_suspect_at) if at is not None]
            if due and not pending.ready and not pending.claimed:
                self.clock.advance_to(min(due))
            if last.is_dead:
                last = self.spawn()
        raise AssertionError("not drained")

    def dead_letters(self) -> list[DeadLetter]:
        return [kept.letter for kept in engine_of(self.app).access().session.dead_letters.select(Selection("all"))]

    def spawn(self) -> Worker:
        self._born += 1
        access = self._access()
        worker = Worker(f"{self.app.name}/{self._born}", access)
        worker.transaction = self._transaction(worker)
        worker.relay = relay_of(engine_of(self.app), access, worker.owner)
        self.workers.append(worker)
        return worker

    def _access(self) -> Access:
        session = FaultySession(engine_of(self.app).store.session(), self.random, self._fault_rate)
        business = engine_of(self.app).databases.business
        if business is None:
            return Access(session, self.clock)
        work = FaultySession(business.session(), self.random, self._fault_rate)
        return Access(session, self.clock, lambda: work)

    def _transaction(self, worker: Worker) -> AttemptRunner:
        app_listener = engine_of(self.app).listener
        engine_of(self.app).listener = lambda step, claim: self._at(worker, step)
        try:
            return attempt_runner(
                engine_of(self.app),
                worker.access,
                node=worker.owner,
                monitor=RecordKeeper(worker),
                stop=worker,
                after_commit=lambda claim, callbacks: None,
            )
        finally:
            engine_of(self.app).listener = app_listener

    def _at(self, worker: Worker, step: Step) -> None:
        """A worker passes a step: it may die here, or others may act before it goes on."""
        if self.random.random() < self._crash_rate:
            raise Halt
        if self._depth < DEPTH_MAX and not self._is_healed and self.random.random() < 0.3:
            self._depth += 1
            try:
                for _ in range(self.random.randrange(1, 6)):
                    self.act()
            finally:
                self._depth -= 1
        if worker.is_dead:
            raise Halt

    def _claim(self, worker: Worker) -> None:
        try:
            worker.held += worker.access.claimer.claim(
                list(self._stages), self.random.randrange(1, 5), worker.owner, worker.owner
            )
        except StoreError:
            worker.access.rollback()

    def _run(self, worker: Worker) -> None:
        if not worker.held:
            return
        assert worker.transaction is not None
        # One that was claimed and taken over meanwhile is run all the same: the fence must stop it.
        claim = worker.held.pop(self.random.randrange(len(worker.held)))
        worker.is_busy = True
        try:
            worker.transaction.run(claim)
        except Halt:
            worker.running = claim
            self._die(worker)
        except StoreError:
            worker.access.rollback()
        finally:
            worker.is_busy = False

    def _suspect(self, worker: Worker) -> bool:
        """What a supervisor does: run a suspect in a child of its own, and see how that ends."""
        try:
            claim = worker.access.claimer.claim_suspect(list(self._stages), worker.owner, worker.owner)
        except StoreError:
            worker.access.rollback()
            return False
        if claim is None:
            return False
        assert worker.transaction is not None
        worker.is_busy = True
        try:
            worker.transaction.run(claim)
        except HandlerKillsItsProcess:
            worker.access.rollback()
            self._count_death(worker, claim)
        except Halt:
            # The parent died with its child: nobody saw whose fault it was.
            worker.running = None
            self._die(worker)
        except StoreError:
            worker.access.rollback()
        finally:
            worker.is_busy = False
        if not worker.is_dead:
            worker.running = None
        return True

    def _count_death(self, worker: Worker, claim: Claim) -> None:
        settlement = Settlement(QueueCommit(worker.access.session, self.clock, worker.owner, unobserved))
        deaths = claim.deaths + 1
        outcome = (
            Buried("worker-died", WorkerDied("simulated"))
            if is_deadly(deaths)
            else Died(pause_after_death(deaths), "simulated")
        )
        try:
            settlement.settle(self._stages[claim.stage], claim, outcome)
        except StoreError:
            worker.access.rollback()

    def _sweep(self, worker: Worker) -> None:
        try:
            Takeover(
                self.app.name,
                engine_of(self.app).stages(),
                worker.access.claimer,
                queue_commit_of(engine_of(self.app), worker.access, worker.owner),
                Census(self),
                engine_of(self.app).random,
            ).sweep([worker.owner])
        except StoreError:
            worker.access.rollback()

    def _relay(self, worker: Worker) -> None:
        if worker.relay is None:
            return
        try:
            worker.relay.turn()
        except StoreError:
            worker.access.rollback()

    def _give_back(self, worker: Worker) -> None:
        returned, worker.held = worker.held[1:], worker.held[:1]
        try:
            worker.access.claimer.release(returned, worker.owner)
        except StoreError:
            worker.access.rollback()
            worker.held += returned

    def _toggle_pause(self, worker: Worker) -> None:
        worker.is_paused = not worker.is_paused

    def _advance(self) -> None:
        self.clock.advance(self.random.choice([0.01, 0.3, 1.0, 5.0]))

    def _die(self, worker: Worker) -> None:
        worker.is_dead = True
        worker.held = []
        worker.access.rollback()
