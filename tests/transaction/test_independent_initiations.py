"""Flows that a stage starts whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stagepost import App, Context, IllegalCall, Target
from stagepost.flow.claim import Claim
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed
from tests.places import place

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Note:
    text: str


@pytest.fixture(params=["sqlite", "postgres", "postgres-outbox"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@pytest.fixture
def other(app: App) -> Target[Note, None]:
    return app.remote("other", Note)


def names(worker: Harness, flow_id: str) -> list[str]:
    return [each.waypoint for each in worker.history(flow_id)]


@pytest.mark.parametrize("way", ["ctx", "app"])
def test_they_start_though_the_stage_fails_and_once_however_often_it_is_tried(
    app: App, harness: NewHarness, other: Target[Note, None], way: str
) -> None:
    is_new: list[bool] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.sql("SELECT 1")
        with (ctx if way == "ctx" else app).initiate(independent=True) as out:
            started = out.send(other, Note("hello"), flow_id="child")
        is_new.append(started.is_new)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.run_one()
    assert is_new == [True]
    worker.claim_one()
    assert names(worker, "child") == ["accepted"]
    worker.drain()
    assert is_new == [True, False, False]
    assert names(worker, "child") == ["accepted"]


@pytest.mark.parametrize("new_database", ["postgres", "postgres-outbox"], indirect=True)
def test_as_many_stages_as_there_are_may_do_so_at_the_same_time(
    app: App, harness: NewHarness, other: Target[Note, None]
) -> None:
    """Each within its open transaction: none waits for a connection that another one holds."""

    waiting: list[Claim] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.sql("SELECT 1")
        if waiting:
            claim = waiting.pop()
            assert isinstance(threads[len(waiting)].transaction.run(claim), Completed)
        with ctx.initiate(independent=True) as out:
            out.send(other, Note(note.text), flow_id=f"child:{note.text}")

    for number in range(4):
        app.start(begin, Note(str(number)), flow_id=f"flow:{number}")
    first = harness()
    threads = [harness(owner=f"thread/{number}") for number in range(3)]
    waiting += [claim for claim in (first.claim_one() for _ in range(3)) if claim is not None]
    assert isinstance(first.run_one(), Completed)
    assert waiting == []
    first.claim_one()
    assert [names(first, f"child:{number}")[:1] for number in range(4)] == [["accepted"]] * 4


def test_the_same_id_with_the_stage_and_apart_from_it_is_an_illegal_call(
    app: App, harness: NewHarness, other: Target[Note, None]
) -> None:
    """It would wait for its own stage for ever."""

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        app.start(other, Note("x"), flow_id="child")
        with ctx.initiate(independent=True) as out:
            out.send(other, Note("x"), flow_id="child")

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    outcome = worker.run_one()
    assert isinstance(outcome, Buried)
    assert isinstance(outcome.error, IllegalCall)
    assert names(worker, "child") == []


def test_it_is_refused_where_no_commit_can_be_apart_from_the_stage(harness_of: Callable[..., Harness]) -> None:
    app = App("shop", database="toy:")
    other: Target[Note, None] = app.remote("other", Note)

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with ctx.initiate(independent=True) as out:
            out.send(other, Note("x"), flow_id="child")

    app.start(begin, Note("x"), flow_id="flow")
    outcome = harness_of(app).run_one()
    assert isinstance(outcome, Buried)
    assert "Use SQLite or PostgreSQL" in str(outcome.error)
