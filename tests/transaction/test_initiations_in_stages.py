"""Flows that a stage starts: they commit with the stage, or never started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, IdConflict, IllegalCall, Initiation, Target
from stagepost.app.app import engine_of
from stagepost.testing import Harness

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]
Start = Callable[[Context, str, str], bool]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Note:
    text: str


@pytest.fixture
def arrived() -> list[str]:
    return []


@pytest.fixture
def other(app: App, arrived: list[str]) -> Target[Note, None]:
    @app.endpoint("other")
    def other(ctx: Context, note: Note) -> None:
        arrived.append(f"{ctx.flow_id}: {note.text}")

    return other


WAYS = ["ctx.initiate", "app.initiate", "app.start"]


@pytest.fixture
def start(app: App, other: Target[Note, None], request: pytest.FixtureRequest) -> Start:
    """Starts a flow in the way that is the test's parameter; returns whether it is new."""

    def by(ctx: Context, flow_id: str, text: str) -> bool:
        if request.param == "app.start":
            return app.start(other, Note(text), flow_id=flow_id).is_new
        initiation = ctx.initiate() if request.param == "ctx.initiate" else app.initiate()
        with initiation as out:
            started = out.send(other, Note(text), flow_id=flow_id)
        return started.is_new

    return by


every_way = pytest.mark.parametrize("start", WAYS, indirect=True)


@every_way
def test_a_flow_started_in_a_stage_starts_when_the_stage_commits(
    app: App, harness: NewHarness, arrived: list[str], start: Start
) -> None:
    is_new: list[bool] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        is_new.append(start(ctx, "child", "hello"))

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert is_new == [True]
    assert arrived == ["child: hello"]
    assert [each.waypoint for each in worker.history("child")] == ["accepted", "received", "committed"]


@every_way
def test_a_flow_started_in_a_stage_that_fails_never_started(
    app: App, harness: NewHarness, arrived: list[str], start: Start
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        start(ctx, "child", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.run_one()
    assert worker.history("child") == []
    worker.drain()
    # Other content under the same id: had the first been let in, this would be a conflict.
    assert arrived == ["child: attempt 2"]
    assert worker.dead_letters() == []


@every_way
def test_a_flow_that_had_been_started_before_is_not_started_again(
    app: App, harness: NewHarness, other: Target[Note, None], arrived: list[str], start: Start
) -> None:
    is_new: list[bool] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        is_new.append(start(ctx, "child", "hello"))
        is_new.append(start(ctx, "child", "hello"))

    app.start(other, Note("hello"), flow_id="child")
    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert is_new == [False, False]
    assert arrived == ["child: hello"]


@every_way
def test_a_conflict_that_the_handler_lets_pass_is_a_dead_letter_and_all_is_undone(
    app: App, harness: NewHarness, ledger: Ledger, other: Target[Note, None], arrived: list[str], start: Start
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ledger.write(ctx, "before")
        start(ctx, "fresh", "never")
        start(ctx, "child", "something else")

    app.start(other, Note("hello"), flow_id="child")
    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.deliveries) == ("hopeless", 1)
    assert "other accepted" in letter.summary
    assert "with other content" in letter.summary
    assert ledger.entries == []
    assert arrived == ["child: hello"]


@every_way
def test_a_conflict_that_the_handler_catches_leaves_its_other_work(
    app: App, harness: NewHarness, ledger: Ledger, other: Target[Note, None], arrived: list[str], start: Start
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ledger.write(ctx, "before")
        start(ctx, "first", "kept")
        with pytest.raises(IdConflict) as caught:
            start(ctx, "child", "something else")
        assert caught.value.scope == "other"
        assert caught.value.digest != caught.value.accepted_digest
        ledger.write(ctx, "after")
        start(ctx, "last", "kept")

    app.start(other, Note("hello"), flow_id="child")
    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert ledger.entries == ["before", "after"]
    assert sorted(arrived) == ["child: hello", "first: kept", "last: kept"]


def test_of_several_flows_in_a_block_none_starts_where_one_is_a_conflict(
    app: App, harness: NewHarness, other: Target[Note, None], arrived: list[str]
) -> None:
    def start_three(ctx: Context) -> None:
        with ctx.initiate() as out:
            out.send(other, Note("first"), flow_id="first")
            out.send(other, Note("something else"), flow_id="child")
            out.send(other, Note("last"), flow_id="last")

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with pytest.raises(IdConflict):
            start_three(ctx)

    app.start(other, Note("hello"), flow_id="child")
    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert arrived == ["child: hello"]
    assert worker.history("first") == []


def test_an_exception_in_the_block_starts_nothing_and_is_the_handlers_to_catch(
    app: App, harness: NewHarness, ledger: Ledger, other: Target[Note, None], arrived: list[str]
) -> None:
    def change_my_mind(ctx: Context) -> None:
        with ctx.initiate() as out:
            out.send(other, Note("never"), flow_id="child")
            raise ZeroDivisionError

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with pytest.raises(ZeroDivisionError):
            change_my_mind(ctx)
        ledger.write(ctx, "went on")

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert ledger.entries == ["went on"]
    assert arrived == []


def test_an_empty_block_starts_nothing_and_touches_nothing(app: App, harness: NewHarness) -> None:
    steps: list[str] = []
    engine_of(app).listener = lambda step, claim: steps.append(str(step))

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with ctx.initiate():
            pass

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert steps[:2] == ["claimed", "handled"]


def test_a_block_of_several_sends_starts_them_all(
    app: App, harness: NewHarness, other: Target[Note, None], arrived: list[str]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with ctx.initiate() as out:
            handles = [out.send(other, Note(str(n)), flow_id="same") for n in range(3)]
            with pytest.raises(RuntimeError, match="not written yet"):
                _ = handles[0].is_new
        assert [each.is_new for each in handles] == [True, True, True]
        assert len({each.message_id for each in handles}) == len(handles)

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert sorted(arrived) == ["same: 0", "same: 1", "same: 2"]


@pytest.mark.in_one_database
def test_after_the_run_the_app_starts_flows_in_transactions_of_their_own_again(
    app: App, harness: NewHarness, other: Target[Note, None], arrived: list[str]
) -> None:
    is_new: list[bool] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.after_commit(lambda: is_new.append(app.start(other, Note("x"), flow_id="from a callback").is_new))

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.run_one()
    assert is_new == [True]
    assert [each.waypoint for each in worker.history("from a callback")] == ["accepted"]


def test_a_callers_connection_is_refused_inside_a_stage(app: App, harness: NewHarness) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        with pytest.raises(IllegalCall, match=r"Use ctx\.initiate"), app.initiate(connection=object()):
            pass

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []


def test_an_initiation_is_for_the_inside_of_its_block_and_for_one(
    app: App, harness: NewHarness, other: Target[Note, None]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        initiation: Initiation = ctx.initiate()
        with pytest.raises(IllegalCall, match="is not open"):
            initiation.send(other, note, flow_id="a")
        with initiation as out:
            out.send(other, note, flow_id="a")
        with pytest.raises(IllegalCall, match="is not open"):
            initiation.send(other, note, flow_id="b")
        with pytest.raises(IllegalCall, match="used once"), initiation:
            pass

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []


def test_a_flow_started_in_a_stage_may_ask_and_be_delayed(
    app: App, harness: NewHarness, other: Target[Note, None], arrived: list[str]
) -> None:
    @app.endpoint("answer")
    def answer(ctx: Context, note: Note) -> Note:
        arrived.append("asked")
        return Note("answered")

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        app.start(answer, Note("?"), flow_id="child", reply_to=other, delay=5)
        arrived.append("begun")

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert arrived == ["begun", "asked", "child: answered"]
