"""PgBouncer before the server: in session mode all goes on as without it, in other modes it is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from stagepost import App, Context, NothingSent, StoreUnavailable, Target
from stagepost.store.postgres import pooler
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.testing import Harness
from tests.cli.shop import started
from tests.servers.plugin import Pooled
from tests.waiting import wait_until

# The name is each client's own: a pooler sets it with every transaction.
STATE = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY name"


@dataclass
class Order:
    id: str


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


OTHER_MODES = [
    ("transaction", {}),
    # Gives the session that was not used for longest, and not the latest.
    ("transaction", {"server_round_robin": "1", "min_pool_size": "5"}),
    ("transaction", {"default_pool_size": "1"}),
    ("statement", {}),
]


@pytest.mark.parametrize(("mode", "settings"), OTHER_MODES)
def test_a_pooler_that_gives_a_session_to_several_clients_is_refused_and_nothing_is_left_in_their_sessions(
    pooled_by: Pooled, url: str, mode: str, settings: dict[str, str]
) -> None:
    through = pooled_by(mode, **settings).url_of(url)
    # A statement that psycopg prepares in one session is not there in the next one.
    with closing(psycopg.connect(through, autocommit=True, prepare_threshold=None)) as other:
        before = other.execute(STATE).fetchall()
        for use in (PostgresStore, migrate_database):
            with pytest.raises(StoreUnavailable, match=f"pooler in {mode} mode: .* Set pool_mode = session"):
                use(through)
        with pytest.raises(NothingSent, match="pool_mode = session"):
            App("shop", database=through).start(Target("pay", Order, None), Order("o1"), flow_id="order:1")
        assert [other.execute(STATE).fetchall() for _ in range(5)] == [before] * 5


def test_a_worker_says_what_to_do_about_a_pooler_in_transaction_mode(
    pooled_by: Pooled, url: str, tmp_path: Path
) -> None:
    ended = started(tmp_path, "status", "--database", pooled_by("transaction").url_of(url))
    assert ended.returncode == 3
    assert "Set pool_mode = session" in ended.stderr


def test_a_pooler_in_session_mode_that_has_no_session_left_is_not_waited_for_for_ever(
    pooled_by: Pooled, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooler, "WAIT_SECONDS", 0.3)
    through = pooled_by("session", default_pool_size="1").url_of(url)
    with pytest.raises(StoreUnavailable, match=r"gave no session within .* Raise its pool_size"):
        PostgresStore(through)


def test_through_a_pooler_in_session_mode_flows_are_started_handled_and_woken_for(pooled_by: Pooled, url: str) -> None:
    app = App("shop", database=pooled_by("session").url_of(url))
    handled: list[str] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        handled.append(ctx.sql("SELECT :id::text AS id", id=order.id).one()["id"])

    with closing(Harness(app)) as worker:
        listening = worker.access.session.queue.changed
        listening()
        for n in range(10):
            app.start(pay, Order(f"o{n}"), flow_id=f"order:{n}")
        wait_until(listening, "the notification is heard")
        worker.drain()
    app.close()
    assert sorted(handled) == [f"o{n}" for n in range(10)]


def test_a_session_that_was_lost_on_its_way_through_a_pooler_is_not_ended_on_the_server(
    pooled_by: Pooled, url: str
) -> None:
    """It may be another client's by now."""
    store = PostgresStore(pooled_by("session").url_of(url))
    with closing(store.session()) as session, closing(psycopg.connect(url, autocommit=True)) as server:
        (backend,) = session.run(Statement(pooler.SESSION, ())).fetchone() or (0,)
        session.reconnect()
        assert session.run(Statement(b"SELECT 1", ())).fetchone() == (1,)
        is_there = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        assert server.execute(is_there, (backend,)).fetchone() == (1,)
