"""Attempts at one message: a commit that is refused twice, and a connection that the server cuts off."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from stagepost import App, Context, StoreContention
from stagepost.flow.claim import Claim
from stagepost.testing import Harness
from stagepost.transaction.outcome import Completed, Outcome
from stagepost.transaction.steps import Step, StepListener
from tests.integrations.models import url_of

Handle = Callable[[Context], object]
Run = Callable[[Handle], Outcome]


class Patient:
    """A stop signal that lets a worker wait for its database at once."""

    def wait(self, seconds: float) -> bool:
        return True


def refusing_two_commits() -> tuple[StepListener, list[StoreContention]]:
    """Return a listener that refuses two commits, and the refusals that are left."""
    refusals = [StoreContention("busy"), StoreContention("busy")]

    def refuse(step: Step, claim: Claim) -> None:
        if step is Step.RECORDED and refusals:
            raise refusals.pop()

    return refuse, refusals


def completes(harness: Harness) -> bool:
    """Run a message whose commit is refused, until it completes."""
    harness.transaction._stop = Patient()
    return isinstance(harness.run_one(), Completed)


def cut_off(ctx: Context, app: App) -> None:
    """Let the server end the connection of a stage's transaction."""
    pid = ctx.sql("SELECT pg_backend_pid()").scalar()
    with psycopg.connect(url_of(app)) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
