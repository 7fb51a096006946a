"""Crash at a named step, with SIGKILL, or simulate a crash in one process at every step of a scenario."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stagepost.app.app import App, engine_of
from stagepost.flow.claim import Claim
from stagepost.runtime.assembly import queue_commit_of, resolver_of
from stagepost.testing.harness import Harness, running
from stagepost.transaction.outcome import Died
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
    """One run of the scenario with a crash at the ``passing``-th step of the run, with its result."""

    step: Step
    stage: str
    passing: int
    result: Any
    expected: Any

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.result == self.expected)

    def __str__(self) -> str:
        verdict = "exactly once" if self.is_exactly_once else f"{self.result!r} instead of {self.expected!r}"
        return f"crash at {self.step} of {self.stage} (passing {self.passing}): {verdict}"


def crash_everywhere(
    make_app: Callable[[], App], scenario: Callable[[App], None], effects: Callable[[App], Any]
) -> list[Crash]:
    """Run the scenario once for every step it passes, with a crash there, and compare its effects with a run without.

    ``make_app`` returns a new app on a new, empty store each time. ``scenario`` starts flows, and ``effects`` reads
    their results. The crash leaves the state that a killed process leaves: the open transaction is rolled back, a death
    of the message is counted, and another attempt runs it.
    """
    control = make_app()
    scenario(control)
    passings = _record_steps(control)
    expected = effects(control)
    return [
        Crash(step, stage, number, _crash_at(make_app(), scenario, effects, number), expected)
        for number, (step, stage) in enumerate(passings, start=1)
    ]


def _record_steps(app: App) -> list[tuple[Step, str]]:
    passings: list[tuple[Step, str]] = []
    engine_of(app).listener = lambda step, claim: passings.append((step, claim.stage))
    with running(app) as harness:
        harness.drain()
    engine_of(app).listener = unobserved
    return passings


def _crash_at(app: App, scenario: Callable[[App], None], effects: Callable[[App], Any], number: int) -> Any:
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
    survivor.drain()
    survivor.close()
    victim.close()
    return effects(app)
