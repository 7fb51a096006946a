"""Crash at a named step, with SIGKILL, or simulate a crash in one process at every step of a scenario."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from stagepost.app.app import App, engine_of
from stagepost.flow.claim import Claim
from stagepost.recovery.deadletter import causes_of
from stagepost.runtime.assembly import queue_commit_of, resolver_of
from stagepost.testing.effects import difference
from stagepost.testing.harness import Harness, running
from stagepost.testing.running import AnApp, app_on, find_app
from stagepost.testing.verdict import verdict
from stagepost.transaction.outcome import Buried, Died, Outcome, Redelivered
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Halt, Step, StepListener, unobserved


def kill_at(step: str, *, stage: str | None = None, occurrence: int = 1) -> StepListener:
    """Return a listener for ``App(listener=…)`` that kills this process with SIGKILL when it passes that step.

    With ``stage``, only passings of that stage count. ``occurrence`` is the number of the passing to kill at, from 1.
    """
    wanted = Step(step)
    passed = 0

    def listen(current: Step, claim: Claim) -> None:
        nonlocal passed
        if current is wanted and stage in (None, claim.stage):
            passed += 1
            if passed == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    return listen


@dataclass(frozen=True, slots=True)
class Crash:
    """One run of the scenario with a crash at the ``passing``-th step of the run, with its result.

    ``failures``  the failures of attempts that the run without a crash does not have
    ``str()``     says which effects the crash lost or doubled, and names the likely cause
    """

    step: Step
    stage: str
    passing: int
    result: Any
    expected: Any
    failures: Sequence[str] = ()

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.result == self.expected)

    def __str__(self) -> str:
        found = difference(self.result, self.expected)
        said = "exactly once" if self.is_exactly_once else verdict(found, self.step, self.failures)
        return f"crash at {self.step} of {self.stage} (passing {self.passing}): {said}"


def crash_everywhere(
    make_app: AnApp,
    scenario: Callable[[App], None],
    effects: Callable[[App], Any],
    *,
    database: str | None = None,
) -> list[Crash]:
    """Run the scenario once for every step it passes, with a crash there, and compare its effects with a run without.

    ``make_app``  returns a new app on a new, empty store each time. With ``database="memory:"`` it may be one app, or
                  the name of one: each run gets a new store
    ``scenario``  starts flows. It also makes the tables, if ``make_app`` does not
    ``effects``   reads the results: rows in lists, in sets, or in a mapping or tuple of these

    The crash leaves the state that a killed process leaves: the open transaction is rolled back, a death of the message
    is counted, and another attempt runs it.
    """
    with _placed(make_app, database) as control:
        scenario(control)
        passings, failed = _record_steps(control)
        expected = effects(control)
    found = []
    for number, (step, stage) in enumerate(passings, start=1):
        with _placed(make_app, database) as app:
            failures = _crash_at(app, scenario, number)
            new = [each for each in failures if each not in failed]
            found.append(Crash(step, stage, number, effects(app), expected, new))
    return found


def _placed(make_app: AnApp, database: str | None) -> AbstractContextManager[App]:
    return nullcontext(find_app(make_app)) if database is None else app_on(make_app, database)


def _record_steps(app: App) -> tuple[list[tuple[Step, str]], list[str]]:
    passings: list[tuple[Step, str]] = []
    engine_of(app).listener = lambda step, claim: passings.append((step, claim.stage))
    with running(app) as harness:
        failures = failures_of(harness.drain())
    engine_of(app).listener = unobserved
    return passings, failures


def failures_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the summary of each failed attempt."""
    return [causes_of(each.error)[0].summary for each in outcomes if isinstance(each, Redelivered | Buried)]


def _crash_at(app: App, scenario: Callable[[App], None], number: int) -> list[str]:
    """Crash there, let another owner finish the work, and return the failures of its attempts."""
    remaining = number

    def listen(step: Step, claim: Claim) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            raise Halt

    engine_of(app).listener = listen
    scenario(app)
    victim = Harness(app, owner="harness/victim")
    try:
        victim.drain()
    except Halt:
        victim.access.rollback()
    engine_of(app).listener = unobserved
    survivor = Harness(app, owner="harness/survivor")
    engine = engine_of(app)
    settlement = Settlement(queue_commit_of(engine, survivor.access, survivor.node))
    stages = engine.stages()
    resolver = resolver_of(engine, survivor.access)
    if resolver is not None:
        # Zero skips the time after which a doubt counts as abandoned by its process.
        resolver.settle_old(0)
    for claim in survivor.access.session.queue.owned("harness/victim"):
        if claim == victim.running:
            settlement.settle(stages[claim.stage], claim, Died(0, "crashed on purpose"))
        else:
            survivor.access.claimer.release([claim], survivor.node)
    outcomes = survivor.drain()
    survivor.close()
    victim.close()
    return failures_of(outcomes)
