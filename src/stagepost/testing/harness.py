"""Run an app to its end in this thread, with a worker's transaction, but without processes, threads or waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from random import Random

from stagepost.app.app import App, engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.ids import node_name
from stagepost.ports.dead_letters import DeadLetter, Selection
from stagepost.ports.journal import Waypoint
from stagepost.runtime.assembly import attempt_runner, independent_relay_of, relay_of
from stagepost.testing.clock import ManualClock
from stagepost.transaction.outcome import Outcome, Redelivered

# The limit of runs. A flow that sends messages in a circle then fails its test, instead of hanging the test run.
RUNS_MAX = 100_000
# How many messages are claimed ahead. The seed picks the next one among them.
AHEAD = 20


class Unwatched:
    """A monitor without record and time limit, because no other process can take over these runs."""

    def started(self, claim: Claim, time_limit_seconds: float) -> None:
        pass

    def ended(self, *, is_settled: bool) -> None:
        pass

    def handled(self) -> None: ...

    def handling(self, interrupt: Callable[[], None] | None) -> nullcontext[None]:
        return nullcontext()

    def limited(self, seconds: float) -> nullcontext[None]:
        return nullcontext()

    def waiting(self) -> nullcontext[None]:
        return nullcontext()


class NoRetries:
    """A stop signal that ends the wait for an unavailable database at once."""

    def wait(self, seconds: float) -> bool:
        return False


class Harness:
    """Run messages one at a time, in an order that ``seed`` decides, because a flow must not rely on any order.

    ``running`` is the message that runs, or ran last.

    If the app has a ``ManualClock``, ``drain`` moves it on to the moment when the next delayed message is due. With a
    real clock, delayed messages stay in the queue.
    """

    def __init__(self, app: App, *, seed: int = 0, owner: str = "harness/1") -> None:
        engine = engine_of(app)
        self.clock = engine.clock
        self._random = Random(seed)  # noqa: S311 - an order, no secret
        self.stages = list(engine.modes())
        self._owner = owner
        self._held: list[Claim] = []
        self._kept: list[Claim] = []
        self.running: Claim | None = None
        self.node = node_name("harness")
        self.access = engine.access()
        try:
            self._relay = relay_of(engine, self.access, self.node)
            self._independent = independent_relay_of(engine, self.access, self.node)
            self.transaction = attempt_runner(
                engine, self.access, node=self.node, monitor=Unwatched(), stop=NoRetries(), after_commit=_call_at_once
            )
        except BaseException:
            self.access.close()
            raise

    def run_one(self) -> Outcome | None:
        """Run one of the messages that can run now, picked by the seed. Return None if there is none."""
        self.running = self.claim_one()
        if self.running is None:
            return None
        outcome = self.transaction.run(self.running)
        self.transaction.idle()
        if isinstance(outcome, Redelivered) and outcome.kept is not None:
            self._block(outcome.kept, outcome.after)
        return outcome

    def claim_one(self) -> Claim | None:
        """Claim the message that would run next. Return None if there is none."""
        if self._kept:
            return self._kept.pop()
        self._independent.turn()
        if self._relay is not None:
            self._relay.turn()
        self._held += self.access.claimer.claim(self.stages, AHEAD - len(self._held), self._owner, self.node)
        if not self._held:
            return self.access.claimer.claim_suspect(self.stages, self._owner, self.node)
        return self._held.pop(self._random.randrange(len(self._held)))

    def _block(self, kept: Claim, after: int) -> None:
        """Keep a message of a blocking redelivery, as a thread does. With a real clock it goes back to the queue."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance_to(self.clock.now() + after)
            self._kept.append(kept)
        else:
            self.transaction.put_off(kept, after, "a harness with a real clock does not wait")

    def drain(self, *others: Harness) -> list[Outcome]:
        """Run messages until none is left that can run, and return the outcome of each run.

        With ``others``, the messages of their apps run too, and the seed decides which app is next.
        Raises ``AssertionError`` after ``RUNS_MAX`` runs.
        """
        outcomes: list[Outcome] = []
        while len(outcomes) < RUNS_MAX:
            outcome = self._run_one_of([self, *others])
            if outcome is not None:
                outcomes.append(outcome)
            elif not self.skip_wait(*others):
                return outcomes
        raise AssertionError(f"not drained after {RUNS_MAX} runs: do the messages run in a circle?")

    def dead_letters(self) -> list[DeadLetter]:
        return [kept.letter for kept in self.access.session.dead_letters.select(Selection("all"))]

    def history(self, flow_id: str) -> list[Waypoint]:
        return self.access.session.journal.history(flow_id)

    def close(self) -> None:
        """Release the claims, and close the sessions."""
        self.access.rollback()
        self.access.claimer.release([*self._held, *self._kept], self.node)
        self._held, self._kept = [], []
        self.transaction.close()
        self.access.close()

    def skip_wait(self, *others: Harness) -> bool:
        """Move the manual clock on to the next delayed message of these apps. Return False if there is none."""
        due = [moment for each in (self, *others) if (moment := each.due_next()) is not None]
        for each in (self, *others) if due else ():
            if isinstance(each.clock, ManualClock):
                each.clock.advance_to(min(due))
        return bool(due)

    def due_next(self) -> int | None:
        """Return the moment when the next delayed message is due; None if there is none, or the clock is a real one."""
        if not isinstance(self.clock, ManualClock):
            return None
        pending = self.access.claimer.pending(self.stages)
        return min((each for each in (pending.next_due_at, pending.next_suspect_at) if each is not None), default=None)

    def _run_one_of(self, harnesses: list[Harness]) -> Outcome | None:
        self._random.shuffle(harnesses)
        ran = (each.run_one() for each in harnesses)
        return next((outcome for outcome in ran if outcome is not None), None)


def running(app: App, *, seed: int = 0) -> closing[Harness]:
    """Return a context manager with a harness, which it closes after the block."""
    return closing(Harness(app, seed=seed))


def _call_at_once(claim: Claim, callbacks: Sequence[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()
