"""What a message costs in statements, which do not depend on the machine's mood. A change that adds one shows here."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import sqlite_stage
from benchmarks.job import TABLE, make_app, start
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.runtime.prefetch import PrefetchWindow
from stagepost.store.sqlite.connection import GuardedConnection
from stagepost.store.sqlite.statements import SQL
from stagepost.testing import Harness
from stagepost.transaction.steps import Step

ITEMS = 200


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "cost.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement, in order, of all of our connections."""
    statements: list[str] = []

    class ListeningCursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: object = (), /) -> ListeningCursor:
            statements.append(sql)
            super().execute(sql, parameters)  # type: ignore[arg-type]  # passed on as it came
            return self

        def executemany(self, sql: str, parameters: object, /) -> ListeningCursor:
            statements.append(sql)
            super().executemany(sql, parameters)  # type: ignore[arg-type]  # passed on as it came
            return self

    def listening(connection: sqlite3.Connection) -> sqlite3.Cursor:
        return sqlite3.Connection.cursor(connection, ListeningCursor)

    monkeypatch.setattr(GuardedConnection, "own_cursor", listening)
    return statements


def test_a_stage_that_inserts_and_sends_is_six_statements(database: Path, asked: list[str]) -> None:
    app = make_app(database)
    start(app, 1)

    def forget_the_claim(step: Step, claim: Claim) -> None:
        if step is Step.CLAIMED:
            asked.clear()

    engine_of(app).listener = forget_the_claim
    harness = Harness(app)
    harness.run_one()
    durable, *stage = asked
    # Once after each claim, which need not be.
    assert durable.startswith("PRAGMA synchronous = FULL")
    assert [each.split()[0] for each in stage] == ["BEGIN", "DELETE", "INSERT", "INSERT", "INSERT", "COMMIT"]
    assert stage[1] == SQL["remove_claimed"].text
    assert stage[3:5] == [SQL["put_ready"].text, SQL["record_waypoint"].text]


def test_claiming_is_shared_by_a_window_of_messages(
    database: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A window is as large as the messages are fast, which is the machine's business.
    monkeypatch.setattr(PrefetchWindow, "size", 50)
    app = make_app(database)
    start(app, ITEMS)
    asked.clear()
    sqlite_stage.run_engine(database, items=ITEMS)
    counts = Counter(each.split()[0] for each in asked)
    messages = 2 * ITEMS
    # Take, the handler's own, half a put, the waypoints; begin and commit. The rest is claiming.
    stage = messages * 5 + ITEMS
    assert counts["DELETE"] >= messages
    assert len(asked) - stage < 0.3 * messages
