"""``stagepost doctor`` on PostgreSQL: each trouble is really made, and seen."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost.flow.clock import SystemClock, microseconds
from stagepost.observe import doctor
from stagepost.ports.liveness import Registration
from stagepost.store.postgres import hold_checks, table_checks
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.testing.contract.givens import a_row, committed
from stagepost.testing.postgres import ServerUnavailableError, account_for_the_server
from tests.cli import shop as shop_commands
from tests.cli.doctoring import Visit, visit
from tests.servers.postgres import VARIABLE, OwnServer, Server
from tests.waiting import wait_until

# What the server of all tests is, which is as quick as it can be.
AS_TESTED = {"fsync"}
# As its project supports it, by now perhaps no more.
OF_THE_MACHINE = {"server-version"}


def troubles(seen: Visit) -> dict[str, str]:
    return {code: severity for code, severity in seen.severities().items() if code not in AS_TESTED | OF_THE_MACHINE}


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, application_name="report") as connection:
        yield connection


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


# Servers of their own


@contextmanager
def own_folder() -> Iterator[Path]:
    if os.environ.get(VARIABLE):
        pytest.skip("the server that the environment names is not to be reconfigured")
    # Not in pytest's own folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="stagepost-doctor-"))
    try:
        if account_for_the_server() is not None:
            folder.chmod(0o755)
        yield folder
    except ServerUnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {reason}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(made: OwnServer) -> Iterator[OwnServer]:
    made.start()
    try:
        yield made
    finally:
        made.stop("immediate")


class Standby(OwnServer):
    """A copy of another server that follows it."""

    def __init__(self, folder: Path, primary: Server) -> None:
        super().__init__(folder)
        self._primary = primary

    def make(self) -> None:
        self._folder.mkdir()
        account = account_for_the_server()
        if account is not None:
            shutil.chown(self._folder, account)
        self._run("pg_basebackup", "-D", str(self._data), "-d", f"{self._primary.url}?application_name=copy", "-R",
                  "-X", "stream", "--checkpoint=fast", "--no-sync")  # fmt: skip
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{self._folder}'\nhot_standby_feedback = on\n")
            file.write("wal_receiver_status_interval = 1\n")


def test_a_server_that_is_well_is_well() -> None:
    with own_folder() as folder:
        made = OwnServer(folder / "server", {"fsync": "on"})
        made.make()
        with started(made):
            migrate_database(made.url)
            seen = visit(made.url)
    assert seen.exit_code == 0
    assert seen.severities().keys() <= OF_THE_MACHINE
    assert seen["snapshots"]["seen"] == "none is held"


UNSOUND = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "max_prepared_transactions": "0",
    "max_connections": "13",
}


def test_a_server_that_is_set_to_lose_data_and_is_nearly_full() -> None:
    with own_folder() as folder, ExitStack() as sessions:
        made = OwnServer(folder / "server", UNSOUND)
        made.make()
        with started(made):
            migrate_database(made.url)
            for _ in range(7):
                sessions.enter_context(psycopg.connect(made.url))
            seen = visit(made.url)
            sessions.enter_context(psycopg.connect(made.url))
            sessions.enter_context(psycopg.connect(made.url))
            fuller = visit(made.url)
            sessions.close()
    assert seen.exit_code == 1
    assert {code: severity for code, severity in seen.severities().items() if code not in OF_THE_MACHINE} == {
        "fsync": "critical",
        "full-page-writes": "critical",
        "synchronous-commit": "warning",
        "autovacuum": "critical",
        "connections": "warning",
    }
    assert "configuration file" in seen["synchronous-commit"]["seen"]
    assert "two_phase is not possible" in seen["two-phase"]["seen"]
    assert seen["connections"]["seen"] == "8 of 10 in use"
    assert fuller["connections"]["severity"] == "critical"


def test_a_standby_and_what_it_keeps_on_its_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_folder() as folder:
        primary = OwnServer(folder / "primary")
        primary.make()
        with started(primary):
            migrate_database(primary.url)
            standby = Standby(folder / "standby", primary)
            standby.make()
            with started(standby), psycopg.connect(standby.url) as reader:
                seen = visit(standby.url)
                assert seen.exit_code == 1
                assert seen["read-only"]["severity"] == "critical"
                assert "standby" in seen["read-only"]["seen"]
                assert seen["tables"]["severity"] == "ok"
                assert seen["workers"]["severity"] == "ok"

                reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                reader.execute("SELECT 1")
                monkeypatch.setattr(hold_checks, "SNAPSHOT_TRANSACTIONS", 0)
                held = wait_until(lambda: visit(primary.url)["snapshots"]["who"], "the standby has told what it holds")
                (culprit,) = held
                assert culprit["state"] == "hot_standby_feedback"
                seen = visit(primary.url)
                assert seen["replication"]["severity"] == "ok"
                assert "1 replica, not waited for" in seen["replication"]["seen"]
                assert seen["replication"]["who"][0]["sync"] == "async"


# Settings


def test_a_database_that_is_set_to_lose_the_last_commits(url: str) -> None:
    run(url, f"ALTER DATABASE {database_of(url)} SET synchronous_commit = off")
    seen = visit(url)
    assert troubles(seen) == {"synchronous-commit": "warning"}
    assert seen["synchronous-commit"]["seen"].endswith("by the database")
    assert seen["synchronous-commit"]["who"] == [{"role": "", "database": database_of(url), "value": "off"}]


@contextmanager
def role(url: str, name: str, *settings: str) -> Iterator[str]:
    """The URL of a new role on the same database."""
    run(
        url,
        f"CREATE ROLE {name} LOGIN",
        *(f"ALTER ROLE {name} IN DATABASE {database_of(url)} {setting}" for setting in settings),
    )
    try:
        yield url.replace("://", f"://{name}@", 1) if "@" not in url else f"postgresql://{name}@{url.partition('@')[2]}"
    finally:
        run(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.parametrize("value", ["off", "'OFF'", "'False'", "0"])
def test_a_role_that_is_set_to_lose_the_last_commits(url: str, value: str) -> None:
    name = f"clerk_{database_of(url)}"
    with role(url, name, f"SET synchronous_commit = {value}"):
        seen = visit(url)
    assert seen["synchronous-commit"]["severity"] == "warning"
    told = {"role": name, "database": database_of(url), "value": value.strip("'")}
    assert told in seen["synchronous-commit"]["who"]


def test_a_database_that_is_read_only(url: str) -> None:
    run(url, f"ALTER DATABASE {database_of(url)} SET default_transaction_read_only = on")
    seen = visit(url)
    assert seen.exit_code == 1
    assert troubles(seen) == {"read-only": "critical"}


@pytest.mark.parametrize("off", ["off", "OFF", "'f'", "no"])
def test_tables_that_are_unlogged_or_not_vacuumed(url: str, off: str) -> None:
    run(
        url,
        "ALTER TABLE stagepost_dead_letter SET UNLOGGED",
        f"ALTER TABLE stagepost_ready SET (autovacuum_enabled = {off})",
    )
    seen = visit(url)
    assert seen.exit_code == 1
    assert troubles(seen) == {"unlogged-tables": "critical", "autovacuum": "critical"}
    assert "stagepost_dead_letter" in seen["unlogged-tables"]["seen"]
    assert "stagepost_ready" in seen["autovacuum"]["seen"]


@pytest.mark.parametrize(
    ("ahead", "severity"), [(0.0, "ok"), (20.0, "warning"), (-20.0, "warning"), (60.0, "critical")]
)
def test_a_clock_that_differs(url: str, ahead: float, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class SetClock(SystemClock):
        def now(self) -> int:
            return super().now() + microseconds(ahead)

    monkeypatch.setattr("stagepost.cli.doctor.SystemClock", SetClock)
    seen = visit(url)
    assert seen["clock"]["severity"] == severity
    if severity != "ok":
        assert ("behind" if ahead > 0 else "ahead") in seen["clock"]["seen"]


def test_a_driver_in_pure_python(url: str, tmp_path: Path) -> None:
    done = shop_commands.started(tmp_path, "doctor", "--json", "--database", url, PSYCOPG_IMPL="python")
    if "libpq" in done.stderr:
        pytest.skip("there is no libpq on this machine for psycopg in pure Python")
    assert '"psycopg runs in pure Python"' in done.stdout


# Who holds what


def test_a_held_snapshot_and_who_holds_it(
    url: str, session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_checks, "SNAPSHOT_SECONDS", 0.0)
    assert visit(url)["snapshots"]["severity"] == "ok"
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    session.execute("SELECT 'a secret'")
    seen = visit(url)
    assert troubles(seen) == {"snapshots": "warning"}
    (who,) = seen["snapshots"]["who"]
    assert who["pid"] == session.info.backend_pid
    assert who["application"] == "report"
    assert who["state"] == "idle in transaction"
    assert who["open_seconds"] >= who["state_seconds"] >= 0
    assert "secret" not in str(seen.report)
    session.rollback()
    assert visit(url)["snapshots"]["severity"] == "ok"


def test_a_held_snapshot_is_critical_once_dead_rows_wait_for_its_end(
    url: str, session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_checks, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(table_checks, "DEAD_ROWS_WARNING", 500)
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    session.execute("SELECT 1")
    run(
        url,
        "INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope) "
        "SELECT 'pay', n, n, 0, 0, 0, extract(epoch FROM now()) * 1000000, '' FROM generate_series(1, 600) AS n",
        "DELETE FROM stagepost_ready",
    )
    # The server counts them in its own time.
    wait_until(lambda: visit(url)["dead-rows"]["severity"] == "warning", "the dead rows have been counted")
    seen = visit(url)
    assert seen["snapshots"]["severity"] == "critical"
    assert seen["dead-rows"]["who"][0]["table"] == "stagepost_ready"
    assert "600 dead rows" in seen["dead-rows"]["seen"]
    assert seen.exit_code == 1


def test_a_session_that_does_nothing_in_its_transaction(
    url: str, session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_checks, "IDLE_SECONDS", 0.0)
    session.execute("SELECT 1")
    seen = visit(url)
    # At the level of isolation that is the default, it holds no snapshot meanwhile.
    assert troubles(seen) == {"idle-in-transaction": "warning"}
    assert seen["idle-in-transaction"]["who"][0]["pid"] == session.info.backend_pid
    with suppress(psycopg.Error):
        session.execute("SELECT 1 / 0")
    assert visit(url)["idle-in-transaction"]["who"][0]["state"] == "idle in transaction (aborted)"
    session.rollback()
    assert troubles(visit(url)) == {}


@pytest.mark.parametrize(
    ("name", "severity", "of"), [("order 7", "warning", "others"), ("stagepost:m1", "critical", "stagepost")]
)
def test_a_prepared_transaction_that_nobody_ends(
    url: str, name: str, severity: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(psycopg.connect(url)) as connection:
        connection.tpc_begin(connection.xid(42, name, database_of(url)))
        connection.execute("CREATE TABLE account (id text)")
        connection.tpc_prepare()
    try:
        assert visit(url)["prepared"]["severity"] == "ok"
        monkeypatch.setattr(hold_checks, "PREPARED_SECONDS", 0.0)
        seen = visit(url)
        assert troubles(seen) == {"prepared": severity}
        assert seen["prepared"]["who"][0]["of"] == of
        monkeypatch.setattr(hold_checks, "SNAPSHOT_SECONDS", 0.0)
        assert "prepared" in visit(url)["snapshots"]["who"][0]
    finally:
        with closing(psycopg.connect(url)) as connection:
            connection.tpc_rollback(connection.tpc_recover()[0])


def test_a_slot_that_nobody_reads(url: str) -> None:
    name = f"slot_{database_of(url)}"
    run(url, f"SELECT pg_create_physical_replication_slot('{name}', true)")
    try:
        seen = visit(url)
    finally:
        run(url, f"SELECT pg_drop_replication_slot('{name}')")
    assert seen["slots"]["severity"] == "warning"
    assert name in {each["slot"] for each in seen["slots"]["who"]}


def test_a_role_that_sees_little_is_told_what_it_did_not_see(url: str) -> None:
    with role(url, f"looker_{database_of(url)}") as looker:
        seen = visit(looker)
        assert seen["others-hidden"]["severity"] == "warning"
        assert "permission denied" in seen["unseen"]["who"][0]["why"]
        run(url, f"GRANT pg_read_all_stats, pg_read_all_data TO looker_{database_of(url)}")
        assert troubles(visit(looker)) == {}


def test_a_look_does_not_wait_behind_who_changes_the_tables(
    url: str, session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.store.postgres.examination.PATIENCE", b"SET LOCAL lock_timeout TO '10ms'")
    session.execute("LOCK TABLE stagepost_ready IN ACCESS EXCLUSIVE MODE")
    seen = visit(url)
    parts = ["the tables", "the queue", "declared stages", "addresses at the broker"]
    assert [each["what"] for each in seen["unseen"]["who"]] == parts
    assert all("lock timeout" in each["why"] for each in seen["unseen"]["who"])
    assert seen["tables"]["severity"] == "ok"


# Who lives


def test_workers_that_died_or_are_paused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(url)
    first, second = store.liveness(SystemClock()), store.liveness(SystemClock())
    for number, lives in enumerate((first, second), 1):
        lives.add_row(Registration("shop", f"shop/{number}", f"worker@here:{number}", "here", number, 1, 0, []))
    seen = visit(url)
    assert seen["workers"]["seen"] == "2 incarnations alive"

    session = store.session()
    with committed(session):
        session.queue.enqueue([a_row("m1", origin_at=SystemClock().now())])
        session.queue.claim(["pay"], 1, "shop/1", 0)
    # As the server sees it when the process is killed.
    first.close()
    wait_until(lambda: troubles(visit(url)), "the server has noticed that it is gone")
    seen = visit(url)
    assert seen.exit_code == (1 if AS_TESTED & seen.severities().keys() else 0)
    assert troubles(seen) == {"workers": "warning"}
    (lost,) = seen["workers"]["who"]
    assert (lost["node"], lost["state"], lost["holds"]) == ("worker@here:1", "dead", 1)

    monkeypatch.setattr(doctor, "PAUSED_AFTER_SECONDS", 0.0)
    seen = visit(url)
    assert seen["workers"]["severity"] == "critical"
    assert seen.exit_code == 1
    assert [each["state"] for each in seen["workers"]["who"]] == ["dead", "paused"]
    second.close()
    session.close()
