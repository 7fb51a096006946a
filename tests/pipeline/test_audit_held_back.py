"""An audit of a PostgreSQL store beside a transaction that stays open: it proves less, and says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec
import psycopg
import pytest

from stagepost.cli.audit_report import print_report
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing.contract.givens import a_waypoint, committed
from tests.pipeline.commands import Cli
from tests.servers.postgres import Server


def test_what_stands_behind_an_open_transaction_is_not_called_clean(
    cli: Cli, new_postgres: Callable[[], str], postgres_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of whatever database of the server: numbers of transactions are given out for all of them."""
    url = new_postgres()
    with closing(PostgresStore(url).session()) as session:
        with committed(session):
            session.journal.record([a_waypoint("m0", name="accepted"), a_waypoint("m0")])
        with psycopg.connect(postgres_server.url) as elsewhere:
            elsewhere.execute("SELECT pg_current_xact_id()")
            with committed(session):
                accepted = a_waypoint("m1", "other", name="accepted")
                session.journal.record([msgspec.structs.replace(accepted, attempt=0)])
            held_back = cli("audit", "--json", url=url)
    assert held_back.code == 1
    told = held_back.json
    assert (told["clean"], told["complete"], told["unseen"], told["waypoints"]) == (True, False, 1, 2)
    assert {row["state"] for row in told["windows"]} == {"provisional"}
    print_report(told)
    assert "not proved yet: 1 waypoint from 2023-11-14T22:13:20Z on" in " ".join(capsys.readouterr().out.split())
    after = cli("audit", "--json", url=url).json
    assert (after["complete"], after["unseen"], after["waypoints"]) == (True, 0, 3)
    # It is lost: it was accepted, and is nowhere.
    assert after["lost_count"] == 1
