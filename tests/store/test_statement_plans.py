"""Every statement of the hot paths finds its rows by the index that its file names, in a file with rows in it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from stagepost.flow.effects import EffectId
from stagepost.ports.dead_letters import Selection
from stagepost.ports.declarations import Declaration
from stagepost.ports.subscriptions import Subscription
from stagepost.store.sqlite.statements import SQL
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import NOW, a_letter, a_row, a_waypoint, an_acceptance, committed
from tests.store.indexes import indexes_named_by

STAGES = [f"stage-{n}" for n in range(20)]
ROWS = 3_000

HOT = [
    "has_claimable",
    "claim_ready",
    "promote_due",
    "remove_claimed",
    "release_claimed",
    "holds_claimed",
    "keep_claimed",
    "list_owned",
    "list_owners",
    "list_waiting_stages",
    "pending",
    "take_suspect",
    "find_accepted",
    "accept_key",
    "list_history",
    "list_latest",
    "find_flow",
    "list_letters_by_all",
    "list_letters_by_flow",
    "list_letters_by_group",
    "list_letters_by_id",
    "list_letters_by_message",
    "list_letter_ids",
    "put_claimed",
    "count_letters_since",
    "exhume_letters",
    "freeze_letters_by_id",
    "freeze_letters_by_message",
    "freeze_letters_by_flow",
    "freeze_letters_by_group",
    "freeze_letters_by_time",
    "take_replay_letters",
    "list_replay_groups",
    "find_replay",
    "advance_replay",
    "begin_run",
    "count_task",
    "remove_starts",
    "count_run",
    "list_quarantine",
    "list_subscriptions",
    "put_declaration",
    "list_undeclared",
    "remove_subscription",
    "lock_circuit",
    "keep_circuit",
    "remove_circuit",
    "remove_probed",
    "put_probed",
    "list_probes_due",
    "is_claimed",
    "has_succeeded",
    "claim_probe_oldest",
    "claim_probe_newest",
    "list_declared",
    "list_fill",
    "list_destinations",
    "count_outbound",
    "list_departures",
    "clear_departures",
    "stamp_departures",
    "raise_effect_token",
    "find_effect",
    "list_effects",
    "list_flow_effects",
    "list_intents",
    "withdraw_intents",
    "withdraw_intent",
    "end_intents",
    "keep_result",
    "end_effect",
    "list_old_ids",
    "oldest_id",
    "remove_ids",
    "last_hour",
    "list_open_flows",
    "list_recent_flows",
    "list_flows_of",
    "list_old_lines",
    "remove_lines",
    "find_hour",
    "enter_batch",
    "find_batch",
    "replace_batch",
    "extend_staged",
    "lock_staged",
    "put_staged",
    "note_staged",
    "accept_staged",
    "quarantine_staged",
    "count_staged",
    "discard_staged",
    "discard_staged_rows",
    "list_swept_of_query",
    "list_swept_by_age",
    "forget_batches",
    "forget_writes",
]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "store.db"
    store = SqliteStore(path)
    session, apart = store.session(), store.apart.session()
    with committed(apart):
        for n in range(ROWS):
            effect = EffectId(f"m{n}", STAGES[n % len(STAGES)], 0, "", "card", 0)
            row = apart.effects.add(effect, f"flow-{n % 500}", 0, "digest", b"{}")
            apart.effects.intend(row, 1, "w", "node", NOW, is_repeat=not n % 500)
            apart.effects.raise_token(f"m{n}", effect.stage, 1)
            if n % 300:
                apart.effects.keep(row, b"{}")
            elif not n % 600:
                apart.effects.end(row, "doubted")
    apart.close()
    with committed(session):
        for n in range(ROWS):
            stage = STAGES[n % len(STAGES)]
            session.queue.enqueue(
                [
                    a_row(f"m{n}", stage, origin_at=NOW + n),
                    a_row(f"d{n}", stage, due_at=NOW + n),
                    a_row(f"s{n}", stage, deaths=1 + n % 3, due_at=NOW + n),
                ]
            )
            session.journal.record([a_waypoint(f"m{n}", f"flow-{n % 500}")])
            session.accepted.accept([an_acceptance(f"m{n}", stage)])
            session.subscriptions.put(Subscription(f"topic-{n % 500}", f"stage-{n}", "shop"))
            session.declarations.put([Declaration(f"stage-{n}", f"stage-{n}", "shop")])
            session.dead_letters.bury(
                a_letter(f"m{n}", flow_id=f"flow-{n}", fingerprint=f"{n % 50:012}", dead_at=NOW + n)
            )
        for _ in range(5):
            session.replays.freeze([Selection("all")], who="olga", at=NOW, rate=None)
        for n in range(5):
            session.queue.claim(STAGES, 100, f"w{n}", 0)
    session.close()
    with closing(sqlite3.connect(path)) as connection:
        # Only here: Stagepost never attaches the second file.
        connection.execute("ATTACH ? AS apart", (f"{path}-apart",))
        yield connection


@pytest.fixture(params=["unanalyzed", "analyzed"])
def populated(request: pytest.FixtureRequest, connection: sqlite3.Connection) -> sqlite3.Connection:
    """As it is, and after somebody ran ANALYZE: the plans may not depend on that."""
    connection.execute("ANALYZE" if request.param == "analyzed" else "DROP TABLE IF EXISTS stagepost_no_such_table")
    return connection


def plan_of(connection: sqlite3.Connection, name: str) -> list[str]:
    text, names = SQL[name]
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * len(names))]


@pytest.mark.parametrize("name", HOT)
def test_a_statement_of_the_hot_path_reads_no_table_from_end_to_end(populated: sqlite3.Connection, name: str) -> None:
    scans = [step for step in plan_of(populated, name) if step.startswith("SCAN") and "stagepost_" in step]
    # What is claimed at the moment is a handful of rows, and has an index of its own.
    assert [step for step in scans if step.split()[-1] != "stagepost_ready_owned"] == []


@pytest.mark.parametrize("name", HOT)
def test_a_statement_uses_the_index_that_its_file_names(populated: sqlite3.Connection, name: str) -> None:
    plan = "\n".join(plan_of(populated, name))
    for index in indexes_named_by("sqlite", name):
        assert re.search(rf"INDEX {index}\b", plan), plan


@pytest.mark.parametrize("name", ["claim_ready", "promote_due", "has_claimable", "list_owners"])
def test_what_waits_is_found_in_order_and_not_sorted(populated: sqlite3.Connection, name: str) -> None:
    """Only what the limit let through is sorted, once; a sort inside the loop would read all that waits."""
    steps = plan_of(populated, name)
    assert sum("USE TEMP B-TREE" in step for step in steps) <= 1
    searches = [step for step in steps if "SEARCH" in step and ("_claimable" in step or "_due" in step)]
    assert all("stage=?" in step for step in searches), steps


def test_every_index_is_named_by_a_statement_or_serves_a_primary_key(connection: sqlite3.Connection) -> None:
    """One that nobody needs only costs."""
    schemas = "SELECT * FROM main.sqlite_schema UNION ALL SELECT * FROM apart.sqlite_schema"
    made = {name for (name,) in connection.execute(f"SELECT name FROM ({schemas}) WHERE type = 'index' AND sql != ''")}
    used = {index for name in SQL for index in re.findall(r"INDEX (\w+)", "\n".join(plan_of(connection, name)))}
    assert made - used == set()


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_can_be_prepared(connection: sqlite3.Connection, name: str) -> None:
    assert plan_of(connection, name) is not None
