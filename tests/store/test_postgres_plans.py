"""Every statement of the hot paths finds its rows by the index that its file names, with many rows stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from stagepost.flow.clock import SystemClock
from stagepost.flow.effects import EffectId
from stagepost.ports.business_keys import KeyRow
from stagepost.ports.dead_letters import Selection
from stagepost.ports.declarations import Declaration
from stagepost.ports.inbox import InboxRow
from stagepost.ports.liveness import Registration
from stagepost.ports.runs import Quarantined, RunCounts, TaskAttempt
from stagepost.ports.staging import BatchContent, BatchKey
from stagepost.ports.subscriptions import Subscription
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing.contract.givens import NOW, a_letter, a_row, a_waypoint, an_acceptance, committed
from stagepost.testing.contract.stagings import a_staged_row
from tests.servers.postgres import Server
from tests.store.indexes import indexes_named_by, named_by

STAGES = [f"stage-{n}" for n in range(20)]
ROWS = 3_000

# For people, once in a while: they count what is stored, or take it all away with them.
COUNTING = {
    *("list_depths", "list_letter_groups", "count_held"),
    *("export_queue", "export_dead_letters", "export_places", "export_outbox", "export_quarantine"),
}
# Once for each range of the journal that goes. It reads the queue, which has far fewer rows than a range has lines.
OF_RANGES = {"list_open_flows_of_range"}
# They have no plan.
BOUNDARIES = {"savepoint", "release", "rollback_to"}
PLANNED = sorted(set(SQL) - BOUNDARIES)
# The register holds a row for each process that lives, others one for each reader. pg_locks is no table.
SMALL = {"stagepost_incarnation", "stagepost_cursor", "stagepost_audit_state", "stagepost_edge"}


@pytest.fixture(scope="module", params=["unanalyzed", "analyzed"])
def populated(
    request: pytest.FixtureRequest, postgres_server: Server, migrated_template: str
) -> Iterator[psycopg.Connection[Any]]:
    """As it is, and after autovacuum came by: the plans may not depend on that."""
    url = postgres_server.new_database(migrated_template)
    store = PostgresStore(url)
    with closing(store.session()) as session:
        with committed(session):
            stages = [(n, STAGES[n % len(STAGES)]) for n in range(ROWS)]
            session.queue.enqueue([a_row(f"m{n}", stage, origin_at=NOW + n) for n, stage in stages])
            session.queue.enqueue([a_row(f"d{n}", stage, due_at=NOW + n) for n, stage in stages])
            session.queue.enqueue([a_row(f"s{n}", stage, deaths=1 + n % 3, due_at=NOW + n) for n, stage in stages])
            session.journal.record([a_waypoint(f"m{n}", f"flow-{n % 500}") for n in range(ROWS)])
            for n in range(ROWS):
                session.dead_letters.bury(a_letter(f"m{n}", flow_id=f"flow-{n}", fingerprint=f"{n % 50:012}"))
                session.subscriptions.put(Subscription(f"topic-{n % 500}", f"stage-{n}", "shop"))
                session.declarations.put([Declaration(f"stage-{n}", f"stage-{n}", "shop")])
                session.accepted.accept([an_acceptance(f"m{n}", STAGES[n % 2])])
                session.inbox.admit(InboxRow(STAGES[n % 2], f"m{n}", "digest", NOW, NOW))
                session.inbox.mark(STAGES[n % 2], f"m{n}")
                session.business_keys.admit(KeyRow(STAGES[n % 2], f"k{n}", f"m{n}", "digest", NOW, None))
                session.runs.count(TaskAttempt(f"run-{n % 100}", 1 + n % 5, n, 1), RunCounts(None, 1, 0, 0))
            for n in range(ROWS):
                effect = EffectId(f"m{n}", STAGES[n % 2], 0, "", "card", 0)
                row = session.effects.add(effect, f"flow-{n}", 0, "digest", b"{}")
                session.effects.intend(row, 1, "shop/1", "here", NOW, is_repeat=False)
                session.effects.raise_token(f"m{n}", STAGES[n % 2], 1)
            for _ in range(5):
                session.replays.freeze([Selection("all")], who="olga", at=NOW, rate=None)
            for n in range(500):
                session.runs.begin(f"run-{n}", "pay", "file", NOW)
                session.runs.quarantine(f"run-{n % 100}", [Quarantined("file", n, "bad", None, "row")])
                session.staging.enter(BatchKey("pay", f"query-{n}"), BatchContent(1, "d"), NOW + n)
                session.staging.open(f"token-{n}", BatchKey("pay", f"query-{n % 50}", n), NOW + n)
                session.staging.add(f"token-{n}", [a_staged_row(place, f"m{n}") for place in range(3)])
        for n in range(5):
            with committed(session):
                session.queue.claim(STAGES, 100, f"w{n}", 0)
        # So many that a walk over the primary key is no match for the right index.
        session.begin()
        session.lend("plans", lambda: None)
        columns = (
            "message_id, flow_id, stage, reason, causes, stack, {}, failures, deaths, deliveries, origin_at, dead_at, "
            "node, declared_at, envelope"
        )
        session.execute(
            f"INSERT INTO stagepost_dead_letter ({columns.format('fingerprint')}) "
            f"SELECT {columns.format('md5(fingerprint || n)')} FROM stagepost_dead_letter, generate_series(1, 10) AS n",
            {},
        )
        session.take_back()
        session.commit()
    with closing(store.liveness(SystemClock())) as lives:
        for n in range(50):
            lives.add_row(Registration(f"app-{n}", f"app-{n}/1", "here", "host", 1, 4, NOW, []))
    with psycopg.connect(url, autocommit=True) as connection:
        if request.param == "analyzed":
            connection.execute("VACUUM ANALYZE")
        yield connection
    postgres_server.drop_database(url)


def plan_of(connection: psycopg.Connection[Any], name: str) -> str:
    """The plan for whatever values, as a prepared statement has it in the end."""
    statement = SQL[name]
    values = ", ".join("NULL" for _ in statement.names)
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        # So few rows of so few bytes could be read from end to end as well.
        connection.execute("SET LOCAL enable_seqscan = off")
        # Without values no range of the journal would be looked at.
        connection.execute("SET LOCAL enable_partition_pruning = off")
        connection.execute(b"PREPARE plan_of AS " + statement.text, prepare=False)
        call = f"EXPLAIN EXECUTE plan_of({values})" if values else "EXPLAIN EXECUTE plan_of"
        lines = connection.execute(call.encode(), prepare=False).fetchall()
        connection.execute("DEALLOCATE plan_of")
    return "\n".join(line for (line,) in lines)


def indexes_of(plan: str, connection: psycopg.Connection[Any]) -> set[str]:
    """Of an index of one of the journal's ranges: the journal's."""
    found = re.findall(r"(?:Index (?:Only )?Scan (?:Backward )?using|Index Scan on|Indexes:) (stagepost_\w+)", plan)
    parents = dict(connection.execute("SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits"))
    return {parents.get(each, each) for each in found}


@pytest.mark.parametrize("name", sorted(set(PLANNED) - COUNTING - OF_RANGES))
def test_a_statement_reads_no_table_from_end_to_end(populated: psycopg.Connection[Any], name: str) -> None:
    scans = re.findall(r"Seq Scan on (stagepost_\w+)", plan_of(populated, name))
    assert set(scans) - SMALL == set(), plan_of(populated, name)


@pytest.mark.parametrize("name", sorted(name for name in PLANNED if indexes_named_by("postgres", name)))
def test_a_statement_uses_the_index_that_its_file_names(populated: psycopg.Connection[Any], name: str) -> None:
    plan = plan_of(populated, name)
    for index in indexes_named_by("postgres", name):
        assert index in indexes_of(plan, populated), plan


@pytest.mark.parametrize("name", sorted(name for name in PLANNED if "primary key" in named_by("postgres", name)))
def test_a_statement_uses_the_primary_key_where_its_file_names_it(
    populated: psycopg.Connection[Any], name: str
) -> None:
    plan = plan_of(populated, name)
    assert any(index.endswith("_pkey") for index in indexes_of(plan, populated)), plan


@pytest.fixture(scope="module")
def emptied(postgres_server: Server, migrated_template: str) -> Iterator[psycopg.Connection[Any]]:
    """Autovacuum came by when all was done, as it mostly is."""
    url = postgres_server.new_database(migrated_template)
    with closing(PostgresStore(url).session()) as session, committed(session):
        session.queue.enqueue([a_row(f"m{n}", origin_at=NOW + n) for n in range(ROWS)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE stagepost_ready SET owner = 'w1'")
        connection.execute("DELETE FROM stagepost_ready")
        connection.execute("ANALYZE")
        yield connection
    postgres_server.drop_database(url)


@pytest.mark.parametrize("name", ["take_claimed", "remove_claimed", "release_claimed", "holds_claimed", "keep_claimed"])
def test_one_message_is_not_looked_for_among_all_that_its_owner_has_had(
    emptied: psycopg.Connection[Any], name: str
) -> None:
    assert indexes_of(plan_of(emptied, name), emptied) == {"stagepost_ready_pkey"}


@pytest.mark.parametrize("name", ["claim_ready", "promote_due"])
def test_what_waits_is_found_in_order_and_no_further_than_the_limit(
    populated: psycopg.Connection[Any], name: str
) -> None:
    """Only what the limit let through is sorted; a sort inside the loop would read all that waits."""
    plan = plan_of(populated, name)
    scan = re.search(r"( *)->  Index Scan using (stagepost_ready_claimable|stagepost_delayed_due).*\n(.*)", plan)
    assert scan is not None, plan
    assert "stage = s.stage" in scan[3], plan
    inner = plan[: scan.start()].rpartition("Nested Loop")[2]
    assert "Limit" in inner, plan
    assert "Sort" not in inner, plan


@pytest.mark.parametrize("name", ["list_owners", "list_waiting_stages"])
def test_who_holds_something_or_has_something_waiting_is_found_by_skipping_over_all_of_it(
    populated: psycopg.Connection[Any], name: str
) -> None:
    plan = plan_of(populated, name)
    assert "Recursive Union" in plan
    assert "Sort" not in plan
    assert "Aggregate" not in plan


def test_every_index_is_named_by_a_statement_or_serves_a_primary_key(populated: psycopg.Connection[Any]) -> None:
    """One that nobody needs only costs."""
    made = {
        name
        for (name,) in populated.execute("SELECT indexname FROM pg_indexes WHERE tablename LIKE 'stagepost%'")
        if not name.endswith("_pkey") and not name.startswith(("stagepost_journal_kept", "stagepost_journal_open"))
    }
    used = {index for name in PLANNED for index in indexes_of(plan_of(populated, name), populated)}
    assert made - used == set()
    assert made - {index for name in PLANNED for index in indexes_named_by("postgres", name)} == set()
