"""What the doctor makes of what a store tells: facts in, findings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagepost.flow.clock import SECOND, microseconds
from stagepost.observe.doctor import diagnose
from stagepost.ports import findings
from stagepost.ports.declarations import Undeclared
from stagepost.ports.edge import EdgeView
from stagepost.ports.findings import Finding, Version
from stagepost.ports.health import (
    Backlogs,
    ClaimCount,
    Heart,
    Lately,
    Paused,
    QueueHealth,
    StoreHealth,
    Unseen,
    Waiting,
)
from stagepost.ports.outbox import Backlog
from stagepost.store.postgres.checks import check_server
from stagepost.store.postgres.hold_checks import is_ours
from stagepost.store.postgres.server_facts import (
    ClockGap,
    PreparedTransaction,
    Replica,
    RoleSetting,
    Server,
    ServerFacts,
    Slot,
    Table,
    TransactionOpen,
)
from stagepost.store.sqlite.checks import FileFacts, check_file
from stagepost.store.sqlite.disk import FileSystem, OpenFile

# In March 2026.
NOW = 1_773_000_000 * SECOND
HOUR = 3600.0
MIB = 1024**2
GIB = 1024**3

ALIVE = Heart("shop/1", "worker@here:1", 1, is_locked=True, silent_seconds=0.4, started_at=NOW - SECOND)
ASKS = Heart("shop/4", "edge@here:4", 4, is_locked=True, silent_seconds=0.4, started_at=NOW - SECOND)
SENDS = Heart("shop/5", "broker@here:5", 5, is_locked=True, silent_seconds=0.4, started_at=NOW - SECOND)
PAUSED = Heart("shop/2", "worker@here:2", 2, is_locked=True, silent_seconds=31.0, started_at=NOW - SECOND)
DEAD = Heart("shop/3", "worker@here:3", 3, is_locked=False, silent_seconds=None, started_at=NOW - SECOND)
QUEUE = QueueHealth(
    waiting=[Waiting("shop.pay", 3, NOW - microseconds(60), 0, None, 0)],
    lately=[],
    claims=[ClaimCount("shop/1", 20)],
    hearts=[ALIVE],
)
SERVER = Server(
    version="15.3",
    version_number=150003,
    is_standby=False,
    is_read_only=False,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    synchronous_commit_source="default",
    autovacuum=True,
    track_counts=True,
    prepared_max=10,
    connections=20,
    connections_max=103,
    connections_reserved=3,
    synchronous_standbys="",
    sees_others=True,
    age=50_000_000,
    freeze_age_max=200_000_000,
)
READY = Table("stagepost_ready", False, True, 1000, 300_000, 1_000_000, 50 * MIB)
JOURNAL = Table("stagepost_journal", False, True, 5_000_000, 0, 1_000_000, 2 * GIB)
SESSION = TransactionOpen(4711, "psql", "ada", "active", 0.2, 0.1, holds=3)
REPLICA = Replica(4712, "walreceiver", "streaming", "async", None)
SLOT = Slot("archive", "physical", True, None, 10 * MIB)
SERVER_FACTS = ServerFacts(
    150003,
    "binary",
    version=Version(1, 1),
    clock=ClockGap(0.02, 0.001),
    server=SERVER,
    tables=[READY, JOURNAL],
    transactions=[SESSION],
    prepared=[PreparedTransaction("other-1", "ada", 2.0)],
    slots=[SLOT],
    replicas=[REPLICA],
    relaxed=[],
)
FILE_FACTS = FileFacts(
    "3.53.1",
    Version(1, 1),
    "wal",
    2,
    FileSystem("local", "ext4"),
    100 * GIB,
    MIB,
    4 * MIB,
    [OpenFile(12, "python3")],
    [],
    None,
    journal_rows=1000,
    accepted_rows=100,
    integrity=[],
)
POSTGRES = StoreHealth(
    "postgresql://here/shop",
    check_server(SERVER_FACTS, NOW),
    queue=QUEUE,
    paused=[],
    undeclared=[],
    backlogs=Backlogs(Backlog(0, None), Backlog(2, NOW - microseconds(290))),
)
SQLITE = replace(
    POSTGRES,
    place="sqlite:////here/shop.db",
    findings=check_file(FILE_FACTS),
    backlogs=Backlogs(Backlog(2, NOW - microseconds(290)), Backlog(0, None)),
)
BOTH = (POSTGRES, SQLITE)
NONE = Backlog(0, None)


def on_server(**changes: Any) -> StoreHealth:
    return replace(POSTGRES, findings=check_server(replace(SERVER_FACTS, **changes), NOW))


def on_file(**changes: Any) -> StoreHealth:
    return replace(SQLITE, findings=check_file(replace(FILE_FACTS, **changes)))


def server(**changes: Any) -> StoreHealth:
    return on_server(server=SERVER._replace(**changes))


def queue(vitals: StoreHealth = POSTGRES, **changes: Any) -> StoreHealth:
    return replace(vitals, queue=replace(QUEUE, **changes))


def session(tables: Sequence[Table] = (READY, JOURNAL), **changes: Any) -> StoreHealth:
    return on_server(transactions=[SESSION._replace(**changes)], tables=list(tables))


def waiting(**changes: Any) -> list[Waiting]:
    return [QUEUE.waiting[0]._replace(**changes)]


def troubles(vitals: StoreHealth) -> dict[str, Finding]:
    return {each.code: each for each in diagnose(vitals, NOW) if each.severity != "ok"}


def severities(vitals: StoreHealth) -> dict[str, str]:
    return {code: each.severity for code, each in troubles(vitals).items()}


@pytest.mark.parametrize("vitals", BOTH)
def test_of_a_store_that_is_well_every_finding_is_ok_and_none_comes_twice(vitals: StoreHealth) -> None:
    found = diagnose(vitals, NOW)
    assert {each.severity for each in found} == {"ok"}
    codes = [each.code for each in found]
    assert len(codes) == len(set(codes))


TOO_OLD = StoreHealth("postgresql://here/shop", check_server(ServerFacts(120_012, "binary"), NOW))

# Of PostgreSQL: what was seen, the code it is found under, and how bad it is.
SERVERS: Sequence[tuple[StoreHealth, str, str]] = [
    (TOO_OLD, "server-version", "critical"),
    (on_server(version_number=130_020), "server-version", "warning"),
    (on_server(driver="python"), "driver", "warning"),
    (server(is_standby=True), "read-only", "critical"),
    (server(is_read_only=True), "read-only", "critical"),
    (server(fsync=False), "fsync", "critical"),
    (server(full_page_writes=False), "full-page-writes", "critical"),
    (server(synchronous_commit="off", synchronous_commit_source="database"), "synchronous-commit", "warning"),
    (on_server(relaxed=[RoleSetting("ada", "", "off")]), "synchronous-commit", "warning"),
    (server(autovacuum=False), "autovacuum", "critical"),
    (server(track_counts=False), "autovacuum", "critical"),
    (on_server(tables=[READY._replace(is_vacuumed=False)]), "autovacuum", "critical"),
    (on_server(tables=[READY, JOURNAL._replace(is_unlogged=True)]), "unlogged-tables", "critical"),
    (server(connections=81), "connections", "warning"),
    (server(connections=96), "connections", "critical"),
    (server(synchronous_standbys="nobody"), "replication", "critical"),
    (server(sees_others=False), "others-hidden", "warning"),
    (on_server(clock=ClockGap(1.5, 0.1)), "clock", "warning"),
    (on_server(clock=ClockGap(-1.5, 0.1)), "clock", "warning"),
    (on_server(clock=ClockGap(-30.5, 0.1)), "clock", "critical"),
    (session(open_seconds=301.0), "snapshots", "warning"),
    (
        on_server(transactions=[SESSION._replace(open_seconds=301.0)], tables=[READY._replace(dead_rows=1_000_000)]),
        "snapshots",
        "critical",
    ),
    (on_server(slots=[SLOT._replace(holds=2_000_000)]), "snapshots", "warning"),
    (on_server(replicas=[REPLICA._replace(holds=2_000_000)]), "snapshots", "warning"),
    (session(state="idle in transaction", holds=None, state_seconds=61.0), "idle-in-transaction", "warning"),
    (session(state="idle in transaction (aborted)", state_seconds=61.0), "idle-in-transaction", "warning"),
    (on_server(prepared=[PreparedTransaction("other", "ada", 61.0)]), "prepared", "warning"),
    (on_server(prepared=[PreparedTransaction("stagepost:m1:1", "ada", 61.0)]), "prepared", "critical"),
    (on_server(slots=[SLOT._replace(is_active=False)]), "slots", "warning"),
    (on_server(slots=[SLOT._replace(is_active=False, kept_bytes=51 * GIB)]), "slots", "critical"),
    (on_server(tables=[READY._replace(dead_rows=1_000_000)]), "dead-rows", "warning"),
    (on_server(tables=[READY._replace(dead_rows=10_000_000)]), "dead-rows", "critical"),
    (server(age=401_000_000), "wraparound", "warning"),
    (on_server(tables=[READY._replace(age=1_700_000_000)]), "wraparound", "critical"),
    (on_server(tables=[JOURNAL._replace(rows=100_000_001)]), "history", "warning"),
    (on_server(tables=[JOURNAL._replace(bytes=51 * GIB)]), "history", "warning"),
    (replace(on_server(version=Version(0, 1)), queue=None), "tables", "critical"),
    (on_server(version=Version(1, 2)), "tables", "critical"),
    (replace(on_server(version=Version(9, 2)), queue=None), "tables", "critical"),
    (replace(POSTGRES, unseen=[Unseen("the queue", "permission denied")]), "unseen", "warning"),
]

FILES: Sequence[tuple[StoreHealth, str, str]] = [
    (on_file(library="3.36.0"), "sqlite-version", "critical"),
    (replace(on_file(version=Version(0, 1)), queue=None), "tables", "critical"),
    (on_file(unwritable=["/here/shop.db"]), "file-writable", "critical"),
    (on_file(journal_mode="delete"), "journal-mode", "warning"),
    (on_file(synchronous=1), "synchronous", "warning"),
    (on_file(file_system=FileSystem("network", "nfs4")), "file-system", "critical"),
    (on_file(file_system=FileSystem("memory", "tmpfs")), "file-system", "warning"),
    (on_file(free_bytes=GIB), "disk-space", "warning"),
    (on_file(free_bytes=100 * MIB), "disk-space", "critical"),
    (on_file(wal_bytes=64 * MIB), "wal-size", "warning"),
    (on_file(wal_bytes=2 * GIB), "wal-size", "critical"),
    (on_file(lock_folder_trouble="/here/shop.db-workers is not a folder"), "lock-folder", "critical"),
    (on_file(integrity=["row 7 missing from index"]), "integrity", "critical"),
    (on_file(journal_rows=100_000_001), "history", "warning"),
    (on_file(accepted_rows=100_000_001), "history", "warning"),
    (replace(SQLITE, unseen=[Unseen("the queue", "no such table")]), "unseen", "warning"),
]

LONG_AGO = NOW - microseconds(2 * HOUR)
RECENTLY_DUE = NOW - microseconds(400)

QUEUES: Sequence[tuple[dict[str, Any], str, str]] = [
    ({"hearts": [ALIVE, DEAD]}, "workers", "warning"),
    ({"hearts": [ALIVE, PAUSED]}, "workers", "warning"),
    ({"hearts": [ALIVE, DEAD], "claims": [ClaimCount("shop/3", 1)]}, "workers", "warning"),
    ({"hearts": [DEAD], "claims": []}, "workers", "warning"),
    ({"hearts": [DEAD], "claims": [ClaimCount("shop/3", 1)]}, "workers", "critical"),
    ({"hearts": [PAUSED], "claims": [ClaimCount("shop/2", 1)]}, "workers", "critical"),
    ({"claims": [ClaimCount("shop/9", 2)]}, "orphaned-claims", "warning"),
    ({"claims": [ClaimCount("bank/9", 2)]}, "orphaned-claims", "critical"),
    ({"waiting": waiting(oldest_at=LONG_AGO)}, "ready-waiting", "warning"),
    ({"waiting": waiting(oldest_at=LONG_AGO), "hearts": [], "claims": []}, "ready-waiting", "critical"),
    # Who only asks does no work.
    ({"waiting": waiting(oldest_at=LONG_AGO), "hearts": [ASKS], "claims": []}, "ready-waiting", "critical"),
    ({"waiting": waiting(overdue=2, due_at=RECENTLY_DUE)}, "delayed-overdue", "warning"),
    ({"waiting": waiting(overdue=2, due_at=RECENTLY_DUE), "hearts": [], "claims": []}, "delayed-overdue", "warning"),
    ({"waiting": waiting(overdue=2, due_at=LONG_AGO), "hearts": [], "claims": []}, "delayed-overdue", "critical"),
    ({"waiting": waiting(stage="@out/ship")}, "outbound-waiting", "warning"),
    ({"waiting": waiting(stage="@out/ship", ready=0, oldest_at=None, overdue=2)}, "outbound-waiting", "warning"),
    ({"waiting": waiting(suspect=1)}, "suspects", "warning"),
    ({"lately": [Lately("shop.pay", "exhausted", 3)]}, "dead-letters", "warning"),
]

STAGES: Sequence[tuple[dict[str, Any], str, str]] = [
    ({"paused": [Paused("shop.pay", NOW - microseconds(3), 0, "refused")]}, "paused-stages", "warning"),
    ({"paused": [Paused("shop.pay", LONG_AGO, 120, "refused")]}, "paused-stages", "critical"),
    ({"undeclared": [Undeclared("mail", None, None)]}, "undeclared-stages", "warning"),
    ({"undeclared": [Undeclared("ship", "shop", LONG_AGO)]}, "undeclared-stages", "warning"),
    ({"undeclared": [Undeclared("ship", "bank", NOW)]}, "undeclared-stages", "warning"),
    ({"backlogs": Backlogs(Backlog(2, RECENTLY_DUE), NONE)}, "outbox", "warning"),
    ({"backlogs": Backlogs(Backlog(2, LONG_AGO), NONE)}, "outbox", "critical"),
    ({"backlogs": Backlogs(NONE, Backlog(2, RECENTLY_DUE))}, "inbox", "warning"),
    ({"backlogs": Backlogs(NONE, Backlog(2, LONG_AGO))}, "inbox", "critical"),
]

# A broker as a living process sees it.
VIEW = EdgeView(SENDS.node, "amqp://here", "away", NOW - SECOND, "it is down", 0, 0, NOW)
VIEWS: list[StoreHealth] = [
    replace(queue(vitals, hearts=[ALIVE, SENDS]), views=[VIEW._replace(state=state)])
    for state in ("full", "blocked", "away")
    for vitals in BOTH
]

ALL: list[tuple[StoreHealth, str, str]] = [
    *SERVERS,
    *FILES,
    *((queue(vitals, **changes), code, severity) for changes, code, severity in QUEUES for vitals in BOTH),
    *((replace(vitals, **changes), code, severity) for changes, code, severity in STAGES for vitals in BOTH),
    *((vitals, "broker-edge", "warning") for vitals in VIEWS),
]


@pytest.mark.parametrize(("vitals", "code", "severity"), ALL)
def test_each_trouble_has_a_code_a_severity_and_a_remedy(vitals: StoreHealth, code: str, severity: str) -> None:
    found = troubles(vitals)[code]
    assert found.severity == severity
    assert found.seen
    assert found.why == findings.WHY[code]
    assert found.remedy


@pytest.mark.parametrize(("vitals", "code", "severity"), ALL)
def test_the_worst_comes_first(vitals: StoreHealth, code: str, severity: str) -> None:
    order = [findings.SEVERITIES.index(each.severity) for each in diagnose(vitals, NOW)]
    assert order == sorted(order, reverse=True)
    assert order[0] >= findings.SEVERITIES.index("critical" if severity == "critical" else "warning")


UNTOUCHED: Sequence[StoreHealth] = [
    on_server(version_number=140_020),
    on_server(version_number=200_001),
    server(prepared_max=0),
    server(connections=79),
    server(age=390_000_000),
    # Autovacuum was told to come later: then it is later that it did not come.
    server(age=1_250_000_000, freeze_age_max=1_200_000_000),
    on_server(clock=ClockGap(1.5, 0.6)),
    on_server(clock=ClockGap(-0.9, 0.0)),
    session(open_seconds=290.0),
    # It has no snapshot, and is not idle.
    session(open_seconds=3000.0, holds=None),
    session(state="idle in transaction", state_seconds=59.0),
    session(state="idle", state_seconds=9999.0),
    session(state=None),
    on_server(replicas=[REPLICA._replace(holds=1000)]),
    on_server(server=SERVER._replace(synchronous_standbys="*"), replicas=[REPLICA._replace(sync_state="sync")]),
    server(synchronous_standbys="*", synchronous_commit="local"),
    on_server(prepared=[PreparedTransaction("stagepost:m1:1", "ada", 59.0)]),
    on_server(transactions=None, prepared=None, slots=None, replicas=None, tables=None, clock=None),
    on_file(library="3.40.1"),
    on_file(wal_bytes=0, holders=[]),
    on_file(file_system=FileSystem("unknown", "")),
    on_file(integrity=None, accepted_rows=None),
    queue(hearts=[], claims=[]),
    queue(waiting=waiting(stage="@out/ship"), hearts=[ALIVE, SENDS]),
    queue(waiting=waiting(stage="@out/ship", ready=0, oldest_at=None)),
    queue(hearts=[ALIVE._replace(silent_seconds=None)]),
    replace(queue(hearts=[ALIVE, SENDS]), views=[VIEW._replace(state="connected", reason="")]),
    # A killed process leaves its view.
    replace(queue(hearts=[ALIVE]), views=[VIEW]),
    # Who lives has started before it was dropped.
    replace(POSTGRES, undeclared=[Undeclared("ship", "shop", NOW)]),
    replace(POSTGRES, undeclared=[Undeclared("shop.reply.0195b9b1-7c5e-7000-8000-000000000000", None, None)]),
    queue(waiting=[]),
    queue(waiting=waiting(oldest_at=NOW - microseconds(3500))),
    queue(waiting=waiting(overdue=2, due_at=NOW - microseconds(200))),
]


@pytest.mark.parametrize("vitals", UNTOUCHED)
def test_what_is_as_it_may_be_troubles_nobody(vitals: StoreHealth) -> None:
    assert severities(vitals) == {}


@pytest.mark.parametrize("gid", ["stagepost", "stagepost:m1:1", "42_c3RhZ2Vwb3N0Om0x_YnItMQ=="])
def test_a_prepared_transaction_of_stageposts_is_known_by_its_global_id_however_the_driver_wrote_it(gid: str) -> None:
    assert is_ours(PreparedTransaction(gid, "ada", 0.0))


@pytest.mark.parametrize("gid", ["42_c3RhZ2U6T1JELTE=_YnItMQ==", "a_b_c", "x_y", "", "my stagepost", "1_\u00e9_2"])
def test_one_of_somebody_else_is_not(gid: str) -> None:
    assert not is_ours(PreparedTransaction(gid, "ada", 0.0))


def test_who_holds_a_snapshot_is_named() -> None:
    found = troubles(
        on_server(
            transactions=[SESSION._replace(open_seconds=4000.0)],
            prepared=[PreparedTransaction("other", "ada", 5000.0)],
            slots=[SLOT._replace(holds=2_000_000)],
            replicas=[REPLICA._replace(holds=3_000_000)],
        )
    )["snapshots"]
    assert [next(iter(each.items())) for each in found.who] == [
        ("pid", 4711),
        ("prepared", "other"),
        ("pid", 4712),
        ("slot", "archive"),
    ]
    assert found.who[0] == {
        "pid": 4711,
        "application": "psql",
        "user": "ada",
        "state": "active",
        "open_seconds": 4000.0,
        "state_seconds": 0.1,
    }
    assert "83 min" in found.seen


def test_an_overdue_message_on_which_somebody_works_is_never_critical() -> None:
    assert severities(queue(waiting=waiting(overdue=1, due_at=LONG_AGO, oldest_at=LONG_AGO))) == {
        "delayed-overdue": "warning",
        "ready-waiting": "warning",
    }


def test_the_apps_are_told_apart_where_nobody_is_left_to_take_over() -> None:
    dead = DEAD._replace(owner="bank/1")
    found = troubles(queue(hearts=[ALIVE, dead], claims=[ClaimCount("bank/1", 1)]))["workers"]
    assert found.severity == "critical"
    assert "no process of bank" in found.seen


def test_every_code_is_in_the_documentation_with_its_severities_and_no_other_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    documented = {row[1].strip().strip("`"): row[2] for row in rows}
    assert documented.keys() == findings.WHY.keys()
    for _, code, severity in ALL:
        assert severity in documented[code], code


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (119.0, "119.0 s"), (120.0, "2 min"), (7200.0, "2 h"), (200_000.0, "2 d")]
)
def test_a_span_is_told_in_a_unit_that_suits_it(seconds: float, text: str) -> None:
    assert findings.span(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 * GIB, "3.0 GiB"), (2**41, "2.0 TiB")],
)
def test_a_size_is_told_in_a_unit_that_suits_it(number: int, text: str) -> None:
    assert findings.size(number) == text
