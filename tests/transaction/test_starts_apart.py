"""Flows that a stage on SQLite starts independently: they wait in the second file until the first one accepts them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, IdConflict, StoreUnavailable
from stagepost.app.app import engine_of
from stagepost.flow.errors import IllegalCall
from stagepost.observe.status import read_status
from stagepost.ports.outbox import Backlog
from stagepost.runtime.relay_service import RelayService
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import Harness, ManualClock, crash_everywhere
from stagepost.testing.running import run_statement
from stagepost.transaction.outcome import Buried, Completed
from tests.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class Note:
    text: str


class Shop:
    """An app whose stage ``begin`` starts a flow ``child`` independently, and then does what ``then`` does."""

    def __init__(self, app: App, harness_of: Callable[[App], Harness]) -> None:
        self.app = app
        self.then: Callable[[Context], object] = lambda ctx: None
        self.text = "hello"
        self.heard: list[str] = []

        @app.endpoint("begin")
        def begin(ctx: Context, note: Note) -> None:
            ctx.sql("SELECT 1")
            with ctx.initiate(independent=True) as out:
                out.send(hear, Note(self.text), flow_id="child")
            self.then(ctx)

        @app.endpoint("hear")
        def hear(ctx: Context, note: Note) -> None:
            self.heard.append(note.text)

        self.begin, self.hear = begin, hear
        app.start(begin, Note("x"), flow_id="flow")
        self.harness = harness_of(app)

    @property
    def store(self) -> SqliteStore:
        store = engine_of(self.app).databases.entrance
        assert isinstance(store, SqliteStore)
        return store

    def held(self) -> Backlog:
        with closing(self.store.apart.session()) as session:
            return session.outbox.backlog()

    def run_begin(self) -> None:
        claim = self.harness.claim_one()
        assert claim is not None
        assert isinstance(self.harness.transaction.run(claim), Completed)


@pytest.fixture(params=["one", "two"])
def shop(
    request: pytest.FixtureRequest,
    new_sqlite: Callable[[], str],
    clock: ManualClock,
    harness_of: Callable[[App], Harness],
) -> Iterator[Shop]:
    """Its messages are in the database of its data, or in another one."""
    app = App("shop", database=new_sqlite(), queue=new_sqlite() if request.param == "two" else None, clock=clock)
    yield Shop(app, harness_of)
    app.close()


def test_it_waits_until_its_stage_has_ended(shop: Shop) -> None:
    seen: list[tuple[int, bool]] = []

    def look(ctx: Context) -> None:
        with closing(engine_of(shop.app).access()) as access:
            status = read_status(engine_of(shop.app).store, access, shop.harness.clock)
            seen.append((status.held.size, status.is_drained))
            assert access.claimer.pending(["hear"]).next_due_at is not None

    shop.then = look
    shop.run_begin()
    assert seen == [(1, False)]
    shop.harness.drain()
    assert shop.heard == ["hello"]
    assert shop.held() == Backlog(0, None)
    with closing(engine_of(shop.app).access()) as access:
        assert read_status(engine_of(shop.app).store, access, shop.harness.clock).is_drained


@pytest.mark.parametrize("before", ["the move", "the stage"])
def test_an_id_that_is_known_with_other_content_is_a_conflict_in_the_stage(shop: Shop, before: str) -> None:
    conflicts: list[IdConflict] = []

    def start_again(ctx: Context) -> None:
        try:
            with ctx.initiate(independent=True) as out:
                out.send(shop.hear, Note("other"), flow_id="child")
        except IdConflict as error:
            conflicts.append(error)

    if before == "the stage":
        shop.app.start(shop.hear, Note("hello"), flow_id="child")
    shop.then = start_again
    shop.harness.drain()
    assert len(conflicts) == 1
    assert shop.heard == ["hello"]


def test_ids_are_compared_within_one_block_too(shop: Shop) -> None:
    is_new: list[bool] = []

    def start_twice(ctx: Context) -> None:
        with ctx.initiate(independent=True) as out:
            started = [out.send(shop.hear, Note("twice"), flow_id="f", message_id="m") for _ in range(2)]
        is_new.extend(each.is_new for each in started)

    shop.then = start_twice
    shop.harness.drain()
    assert is_new == [True, False]
    assert sorted(shop.heard) == ["hello", "twice"]


def test_a_conflict_that_the_move_meets_is_a_dead_letter_with_both_digests(shop: Shop) -> None:
    shop.run_begin()
    shop.app.start(shop.hear, Note("other"), flow_id="child")
    shop.harness.drain()
    assert shop.heard == ["other"]
    (letter,) = shop.harness.dead_letters()
    assert (letter.stage, letter.reason, letter.flow_id) == ("hear", "unsendable", "child")
    assert b"hello" in letter.envelope
    assert re.search(r"digest \w+… then, \w+… now", letter.causes[0].message)
    assert shop.held() == Backlog(0, None)


def test_a_kill_between_the_two_commits_of_a_move_moves_nothing_twice(shop: Shop) -> None:
    shop.run_begin()
    with closing(sqlite3.connect(f"{shop.store.path}-apart")) as file:
        (row,) = file.execute("SELECT * FROM stagepost_outbox").fetchall()
    shop.harness.drain()
    with closing(sqlite3.connect(f"{shop.store.path}-apart")) as file, file:
        file.execute(f"INSERT INTO stagepost_outbox VALUES ({', '.join('?' * len(row))})", row)
    shop.harness.drain()
    assert shop.heard == ["hello"]
    assert shop.held() == Backlog(0, None)


def test_a_joined_start_of_the_same_flow_is_refused_as_it_would_wait_for_itself(shop: Shop) -> None:
    shop.app.start(shop.begin, Note("y"), flow_id="second")

    @shop.app.endpoint("both")
    def both(ctx: Context, note: Note) -> None:
        shop.app.start(shop.hear, Note("a"), flow_id="same")
        with ctx.initiate(independent=True) as out:
            out.send(shop.hear, Note("a"), flow_id="same")

    shop.app.start(both, Note("x"), flow_id="third")
    with closing(Harness(shop.app)) as harness:
        outcomes = harness.drain()
    (buried,) = [each for each in outcomes if isinstance(each, Buried)]
    assert isinstance(buried.error, IllegalCall)


@pytest.mark.parametrize("restored", ["", "-apart"])
def test_one_of_the_two_files_restored_without_the_other_is_refused_at_start(shop: Shop, restored: str) -> None:
    shop.harness.drain()
    for _ in range(3):
        engine_of(shop.app).databases.renumber()
    with closing(sqlite3.connect(f"{shop.store.path}{restored}")) as file, file:
        file.execute("UPDATE stagepost_meta SET value = '1' WHERE key = 'number'")
    databases = engine_of(shop.app).databases
    again = App("shop", database=databases.database, queue=databases.queue)
    with pytest.raises(StoreUnavailable, match=r"was restored without .* Restore both files from the same backup"):
        Harness(again)


def test_the_first_file_names_a_second_one_that_a_stage_made(shop: Shop) -> None:
    named = "SELECT count(*) FROM stagepost_meta WHERE key = 'second'"
    service = RelayService(engine_of(shop.app), "here")
    service.start()
    shop.run_begin()

    def is_named() -> bool:
        with closing(sqlite3.connect(shop.store.path)) as file:
            return bool(file.execute(named).fetchone() == (1,))

    wait_until(lambda: is_named() and shop.held().size == 0, "the relay names the file, and moves the flow")
    service.stop()
    assert service.join(PATIENCE_SECONDS)
    Path(f"{shop.store.path}-apart").unlink()
    with pytest.raises(StoreUnavailable, match="is missing"):
        SqliteStore(shop.store.path).apart.session()


def test_a_crash_at_any_step_starts_the_flow_once() -> None:
    app = App("shop")

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.sql("INSERT INTO begun (text) VALUES (:text)", text=note.text)
        with ctx.initiate(independent=True) as out:
            out.send(hear, note, flow_id="child")

    @app.endpoint("hear")
    def hear(ctx: Context, note: Note) -> None:
        ctx.sql("INSERT INTO heard (text) VALUES (:text)", text=note.text)

    def scenario(placed: App) -> None:
        for table in ("begun", "heard"):
            run_statement(placed, f"CREATE TABLE {table} (text TEXT)")
        placed.start(begin, Note("x"), flow_id="flow")

    def effects(placed: App) -> list[object]:
        return [list(run_statement(placed, f"SELECT text FROM {table}")) for table in ("begun", "heard")]

    crashes = crash_everywhere(app, scenario, effects, database="memory:")
    assert len(crashes) > 10
    assert [str(each) for each in crashes if not each.is_exactly_once] == []
