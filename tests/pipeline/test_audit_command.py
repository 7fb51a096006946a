"""``stagepost audit``: proves that all is well where it is, and finds what is not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import StoreUnavailable
from stagepost.pipeline import frames
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.runtime.declarations import declare_stages
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import Answer, Cli, Commands

TELLS = {
    "clean": bool, "complete": bool, "url": str, "at": str, "seen_until": str, "unseen": int, "held": int,
    "waypoints": int, "flows": dict, "lost_count": int, "doubled_count": int,
    "stuck_count": int, "stages": list, "windows": list, "latency": list, "dead_letters": list, "work": list,
    "retention": list, "types": list, "growth": dict, "reopened": list, "continued_from": type(None),
    "lost": list, "doubled": list, "stuck": list, "doubted_count": int, "in_doubt": list, "in_doubt_count": int,
    "archived": int, "has_gap": bool,
}  # fmt: skip
STAGE_TELLS = {
    "stage": str,
    "sent": int,
    "committed": int,
    "expired": int,
    "dead": int,
    "edited": int,
    "open": int,
    "failures": int,
    "deaths": int,
}
WINDOW_TELLS = {
    "window": str, "until": str, "failures": int,
    "flows": int, "sent": int, "committed": int, "expired": int, "dead": int, "edited": int,
    "open": int, "lost": int, "in_doubt": int, "doubled": int, "doubted": int, "digest": int, "state": str,
}  # fmt: skip
LATENCIES = {f"{what}_{share}": float for what in ("wait", "run") for share in ("p50", "p95", "p99", "max")}
WINDOW_TELLS |= LATENCIES
LATENCY_TELLS = {"stage": str, "messages": int, "backwards": int} | LATENCIES
LETTERS_TELL = {
    "fingerprint": str, "stage": str, "reason": str, "letters": int, "first_at": str, "last_at": str, "sample_id": int,
    "cause": str, "verdict": str,
}  # fmt: skip


def shape(row: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in row.items()}


def clean(answer: Answer) -> Any:
    found = answer.json
    assert (answer.code, found["clean"], found["lost"], found["doubled"]) == (0, True, [], [])
    assert (found["lost_count"], found["doubled_count"]) == (0, 0)
    assert (found["complete"], found["unseen"]) == (True, 0)
    return found


# All is well


def test_a_store_where_all_was_done_is_clean_and_told_in_full(cli: Cli, books: Books) -> None:
    books.start([*orders(10), *orders(2, "fail", entries=1, name="bad")])
    books.drain()
    found = clean(cli.audit())
    assert shape(found) == TELLS
    assert found["url"] == books.url
    assert found["waypoints"] == books.number("SELECT count(*) FROM stagepost_journal")
    assert found["flows"] == {"flows": 12, "completed": 10, "dead": 2, "under_way": 0}
    assert [shape(row) for row in found["stages"]] == [STAGE_TELLS] * 4
    assert {row["stage"]: (row["sent"], row["committed"], row["dead"], row["failures"]) for row in found["stages"]} == {
        "shop.order": (12, 12, 0, 0),
        "shop.stock": (12, 10, 2, 6),
        "shop.order.pack": (10, 10, 0, 0),
        "shop.done": (10, 10, 0, 0),
    }
    assert [shape(row) for row in found["windows"]] == [WINDOW_TELLS] * len(found["windows"])
    assert sum(row["sent"] for row in found["windows"]) == 44
    assert {row["state"] for row in found["windows"]} == {"provisional"}
    assert [shape(row) for row in found["latency"]] == [LATENCY_TELLS] * 4
    (group,) = found["dead_letters"]
    assert shape(group) == LETTERS_TELL
    assert (group["stage"], group["letters"], group["cause"]) == ("shop.stock", 2, "RuntimeError: told to fail")
    assert [(shape(row), row["committed"]) for row in found["work"]] == [({"node": str, "committed": int}, 42)]


def test_an_empty_store_is_clean(cli: Cli) -> None:
    found = clean(cli.audit())
    assert shape(found) == TELLS
    assert found["flows"] == {"flows": 0, "completed": 0, "dead": 0, "under_way": 0}
    assert (found["waypoints"], found["stages"], found["windows"], found["work"]) == (0, [], [], [])
    growth = found["growth"]
    assert (growth["store_bytes_per_day"], growth["days_to_full"]) == (None, None)
    assert "the journal is younger than an hour" in growth["unknown"][-1]
    text = cli("audit").out
    assert "every message was executed exactly once" in text
    assert not [title for title in ("stages", "windows of origin", "retention of ids", "node") if title in text]


def test_the_function_of_a_notebook_answers_as_the_command_does(cli: Cli, books: Books, spark: SparkSession) -> None:
    books.start([*orders(3), *orders(1, "fail", entries=1, name="dead")])
    books.drain()
    told = clean(cli.audit("--window", "7"))
    report = frames.audit(spark, books.url, window_seconds=7)
    found = json.loads(json.dumps(report.as_dict()))
    moving = {"at", "seen_until", "growth", "windows", "dead_letters", "retention"}
    assert {name: found[name] for name in found.keys() - moving} == {name: told[name] for name in told.keys() - moving}
    assert [row["window"] for row in found["windows"]] == [row["window"] for row in told["windows"]]
    assert [row["cause"] for row in found["dead_letters"]] == [row["cause"] for row in told["dead_letters"]]
    assert [row["types"] for row in found["retention"]] == [row["types"] for row in told["retention"]]
    assert found["growth"]["free_bytes"] is not None
    assert report._repr_html_().startswith("<iframe")
    with pytest.raises(StoreUnavailable, match=r"typo\.db does not exist"):
        frames.audit(spark, f"{books.url}-typo.db")


@pytest.mark.more
def test_what_waits_runs_or_is_set_aside_is_not_lost(cli: Cli, books: Books) -> None:
    """A message in each place that a message can be in."""
    books.start([*orders(1, "fail", entries=1, name="dead"), *orders(1, "fail", entries=1, name="replayed")])
    books.drain()
    replayed = cli("dead", "replay", "--flow", "replayed0")
    assert replayed.code == 0
    books.start(orders(1, name="ready"))
    books.start(orders(1, name="delayed"), delay=3600)
    books.start(orders(1, name="claimed"))
    books.change("UPDATE stagepost_ready SET owner = 'shop/1', deliveries = 1 WHERE flow_id = 'claimed0'")
    books.start(orders(1, name="suspect"))
    books.change(
        "INSERT INTO stagepost_suspect (due_at, stage, message_id, flow_id, failures, deaths, deliveries, origin_at,"
        " envelope) SELECT 1, stage, message_id, flow_id, 0, 1, 1, origin_at, envelope FROM stagepost_ready"
        " WHERE flow_id = 'suspect0'"
    )
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'suspect0'")
    found = clean(cli.audit("--stuck", "1000000"))
    assert found["flows"] == {"flows": 6, "completed": 0, "dead": 1, "under_way": 5}
    books.drain_but("claimed0")
    assert clean(cli.audit())["flows"] == {"flows": 6, "completed": 3, "dead": 2, "under_way": 1}


@pytest.mark.more
def test_a_replay_that_committed_is_once(cli: Cli, books: Books, tmp_path: Path) -> None:
    books.start(orders(3, f"fail-unless={tmp_path}/mended", name="mend"))
    books.drain()
    assert clean(cli.audit())["flows"]["dead"] == 3
    (tmp_path / "mended").touch()
    assert cli("dead", "replay", "--all").code == 0
    books.drain()
    assert clean(cli.audit())["flows"] == {"flows": 3, "completed": 3, "dead": 0, "under_way": 0}


@pytest.mark.more
def test_what_was_edited_is_balanced_under_both_its_ids(cli: Cli, books: Books) -> None:
    """One is edited and commits, one is edited and dies again, one is edited and waits."""
    books.start(orders(4, "fail", entries=1, name="bad"))
    books.drain()
    mended = 'messages.0.body.fault=""'
    assert cli("dead", "edit", "bad0", "--set", mended).code == 0
    assert cli("dead", "edit", "bad1", "--set", "messages.0.body.quantity=2").code == 0
    books.drain()
    assert cli("dead", "edit", "bad2", "--set", mended).code == 0
    found = clean(cli.audit())
    assert found["flows"] == {"flows": 4, "completed": 1, "dead": 2, "under_way": 1}
    stages = {row["stage"]: row for row in found["stages"]}
    counted = {name: stages["shop.stock"][name] for name in ("sent", "committed", "dead", "edited", "open")}
    assert counted == {"sent": 7, "committed": 1, "dead": 2, "edited": 3, "open": 1}
    for row in [*found["windows"], *found["stages"]]:
        assert row["sent"] == row["committed"] + row["dead"] + row["edited"] + row["open"]
    books.drain()
    assert clean(cli.audit())["flows"] == {"flows": 4, "completed": 2, "dead": 2, "under_way": 0}
    # What went on in its place is looked for like any other.
    (new_id,) = books.rows("SELECT message_id FROM stagepost_dead_letter WHERE flow_id = 'bad1'")[0]
    books.change("DELETE FROM stagepost_dead_letter WHERE message_id = ?", new_id)
    answer = cli.audit()
    assert (answer.code, [row["message_id"] for row in answer.json["lost"]]) == (1, [new_id])


# Something is wrong


@pytest.mark.parametrize(
    "table", ["ready", *(pytest.param(each, marks=pytest.mark.soak) for each in ("delayed", "suspect"))]
)
def test_a_message_that_vanished_from_the_queue_is_lost_and_named(cli: Cli, books: Books, table: str) -> None:
    books.start(orders(5))
    books.start(orders(3, name="later"), delay=3600)
    if table == "suspect":
        books.change(
            "INSERT INTO stagepost_suspect (due_at, stage, message_id, flow_id, failures, deaths, deliveries,"
            " origin_at, envelope) SELECT 1, stage, message_id, flow_id, 0, 1, 1, origin_at, envelope"
            " FROM stagepost_ready WHERE flow_id = 'o3'"
        )
        books.change("DELETE FROM stagepost_ready WHERE flow_id = 'o3'")
    victim, flow = books.rows(f"SELECT message_id, flow_id FROM stagepost_{table} ORDER BY id DESC LIMIT 1")[0]
    books.change(f"DELETE FROM stagepost_{table} WHERE message_id = ?", victim)
    answer = cli.audit()
    found = answer.json
    assert (answer.code, found["clean"], found["lost_count"]) == (1, False, 1)
    assert [(row["stage"], row["message_id"], row["flow_id"]) for row in found["lost"]] == [
        ("shop.order", victim, flow)
    ]
    assert sum(row["lost"] for row in found["windows"]) == 1
    said = cli("audit")
    assert said.code == 1
    assert "lost 1" in said.out
    assert f"flow {flow}  message {victim}" in said.out
    assert "not every message was executed exactly once" in said.out


@pytest.mark.more
def test_a_message_that_was_sent_and_vanished_in_mid_flow_is_lost(cli: Cli, books: Books) -> None:
    books.start(orders(2))
    harness = books.harness()
    while books.number("SELECT count(*) FROM stagepost_ready WHERE stage = 'shop.order.pack'") == 0:
        assert harness.run_one() is not None
    harness.close()
    books.change("DELETE FROM stagepost_ready WHERE stage = 'shop.order.pack'")
    books.drain()
    found = cli.audit().json
    assert [row["stage"] for row in found["lost"]] == ["shop.order.pack"]
    assert found["flows"]["under_way"] == 1


@pytest.mark.more
def test_more_losses_than_are_listed_are_all_counted(cli: Cli, books: Books) -> None:
    books.start(orders(130))
    books.change("DELETE FROM stagepost_ready WHERE flow_id <> 'o0'")
    found = cli.audit().json
    assert (found["lost_count"], len(found["lost"])) == (129, 100)
    assert "… and 119 more; --json lists a hundred" in cli("audit").out


def test_a_commit_that_is_there_twice_is_doubled_and_named(cli: Cli, books: Books) -> None:
    books.start(orders(5))
    books.drain()
    books.forge("committed", "flow_id = 'o2' AND stage = 'shop.stock'")
    answer = cli.audit()
    found = answer.json
    assert (answer.code, found["clean"], found["doubled_count"], found["lost_count"]) == (1, False, 1, 0)
    (row,) = found["doubled"]
    assert (row["stage"], row["flow_id"], row["how"]) == ("shop.stock", "o2", "two commits of one message")
    assert sum(row["doubled"] for row in found["windows"]) == 1
    said = cli("audit")
    assert (said.code, "doubled 1" in said.out, "flow o2" in said.out) == (1, True, True)


def test_two_messages_from_one_send_are_doubled(cli: Cli, books: Books) -> None:
    """As a broken id would leave them."""
    books.start(orders(3))
    books.drain()
    books.forge("sent", "flow_id = 'o1' AND stage = 'shop.stock'", message_id="'another'")
    books.forge("committed", "flow_id = 'o1' AND stage = 'shop.stock'", message_id="'another'")
    answer = cli.audit()
    assert answer.code == 1
    assert [(row["flow_id"], row["how"]) for row in answer.json["doubled"]] == [("o1", "two messages from one send")]


def test_a_dead_letter_that_vanished_is_lost(cli: Cli, books: Books) -> None:
    books.start(orders(2, "fail", entries=1))
    books.drain()
    books.change("DELETE FROM stagepost_dead_letter WHERE flow_id = 'o0'")
    answer = cli.audit()
    assert (answer.code, [row["flow_id"] for row in answer.json["lost"]]) == (1, ["o0"])


# Windows, lateness, what is stuck


@pytest.mark.more
def test_windows_are_as_wide_as_was_said_and_final_when_they_are_late_enough(cli: Cli, books: Books) -> None:
    books.start(orders(6))
    books.drain()
    now = int(time.time())
    for number, ago in enumerate((7200, 7190, 3600, 3600, 40, 1)):
        books.change(
            "UPDATE stagepost_journal SET origin_at = ? WHERE flow_id = ?", (now - ago) * 1_000_000, f"o{number}"
        )
    wide = clean(cli.audit("--window", "1000000"))["windows"]
    assert sum(row["flows"] for row in wide) == 6
    assert len(wide) <= 2
    narrow = clean(cli.audit("--window", "10", "--late", "0"))["windows"]
    assert all(int(datetime.fromisoformat(row["window"]).timestamp()) % 10 == 0 for row in narrow)
    assert {row["state"] for row in narrow[:-1]} == {"final"}
    late = clean(cli.audit("--window", "10", "--late", "600"))["windows"]
    assert [row["state"] for row in late] == [
        "final" if datetime.fromisoformat(row["window"]).timestamp() < now - 1000 else "provisional" for row in late
    ]


def test_the_advice_names_types_and_what_it_cannot_know(cli: Cli, books: Books) -> None:
    declare_stages(engine_of(books.app))
    books.start(orders(1))
    books.change("UPDATE stagepost_journal SET at = at - 7200000000, origin_at = origin_at - 7200000000")
    answer = cli.audit("--stuck", "100000", "--free", "1")
    found = clean(answer)
    assert [(row["stage"], row["types"], row["kept_hours"], row["guard"]) for row in found["retention"]] == [
        ("shop.order", "Order", 400 * 24, "reactive")
    ]
    assert found["types"] == [{"type": "Order", "stages": 1, "keep_hours": 72, "guard": "reactive"}]
    growth = found["growth"]
    assert (growth["free_bytes"], growth["unknown"]) == (2**30, [])
    assert growth["days_to_full"] == pytest.approx(2**30 / (growth["store_bytes"] / growth["days"]))
    shown = cli("audit", "--stuck", "100000")
    assert "Order, of 1 stage: keep ids for 72 h, guard reactive" in shown.out
    assert "the disk is full in" in shown.out


@pytest.mark.parametrize("option", [("--window", "0"), ("--late", "-1"), ("--stuck", "0"), ("--window", "wide")])
def test_a_window_that_cannot_be_is_refused(cli: Cli, option: tuple[str, str]) -> None:
    answer = cli.audit(*option)
    assert answer.code == 2
    assert option[0] in answer.err


@pytest.mark.more
def test_what_waits_for_longer_than_was_said_is_stuck_and_no_bad_news(cli: Cli, books: Books) -> None:
    books.start(orders(2))
    books.change("UPDATE stagepost_journal SET at = at - 100000000 WHERE flow_id = 'o1'")
    found = clean(cli.audit("--stuck", "50"))
    assert found["stuck_count"] == 1
    assert [(row["flow_id"], row["place"], row["due_at"]) for row in found["stuck"]] == [("o1", "ready", None)]
    assert clean(cli.audit("--stuck", "200"))["stuck_count"] == 0


@pytest.mark.more
def test_a_letter_is_grouped_with_its_cause_however_odd_its_text(cli: Cli, books: Books) -> None:
    books.start(orders(1, "fail", entries=1))
    books.drain()
    causes = '[{"type": "shop.Odd[bold]", "message": "žluť \\u0000 [/red]\\nmore"}]'
    books.change("UPDATE stagepost_dead_letter SET causes = ?", causes)
    (group,) = clean(cli.audit())["dead_letters"]
    assert group["cause"] == "shop.Odd[bold]: žluť \x00 [/red]\nmore"
    assert cli("audit").code == 0


# What is asked for


def test_a_store_that_is_not_there_is_not_made(cli: Cli, tmp_path: Path) -> None:
    answer = cli("audit", url=f"sqlite:///{tmp_path}/typo.db")
    assert (answer.code, answer.is_one_paragraph) == (3, True)
    assert f"{tmp_path}/typo.db does not exist" in answer.err
    assert not (tmp_path / "typo.db").exists()


def test_a_store_in_memory_is_refused(cli: Cli) -> None:
    answer = cli("audit", url="memory:")
    assert (answer.code, answer.is_one_paragraph) == (2, True)


@pytest.mark.more
def test_the_audit_changes_nothing(cli: Cli, books: Books) -> None:
    books.start([*orders(3), *orders(1, "fail", entries=1, name="bad")])
    books.drain()
    books.start(orders(2, name="waiting"))
    with books.connected() as connection:
        before = list(connection.iterdump())
        cli.audit()
        assert list(connection.iterdump()) == before


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.more
@pytest.mark.usefixtures("far_from_utc")
def test_moments_are_utc_wherever_the_command_runs(cli: Cli, books: Books) -> None:
    books.start(orders(1))
    (row,) = clean(cli.audit("--window", "1"))["windows"]
    (began,) = books.rows("SELECT origin_at FROM stagepost_journal")[0]
    assert abs(datetime.fromisoformat(row["window"]) - datetime.fromtimestamp(began / 1e6, UTC)) <= timedelta(seconds=1)


class LateClock(SystemClock):
    """After its first look two minutes go by, as when Java takes its time to start."""

    passed = 0

    def now(self) -> int:
        LateClock.passed, passed = 120_000_000, LateClock.passed
        return super().now() + passed


def test_a_window_is_not_final_before_its_journal_was_read_to_its_end(
    spark: SparkSession, books: Books, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr("stagepost.cli.audit.SystemClock", LateClock)
    monkeypatch.setattr(LateClock, "passed", 0)
    books.start(orders(1))
    found = clean(cli.audit("--window", "60", "--late", "0"))
    assert [row["state"] for row in found["windows"]] == ["provisional"]


def report(spark: SparkSession, books: Books) -> AuditReport:
    until = books.number("SELECT coalesce(max(id), 0) FROM stagepost_journal") + 1
    return audit(spark, books.url, until=until, at=SystemClock().now(), terms=AuditTerms())


def test_the_job_can_be_called_without_the_command(spark: SparkSession, books: Books) -> None:
    books.start(orders(2))
    found = report(spark, books)
    assert found.is_clean
    assert found.as_dict()["flows"]["under_way"] == 2


@pytest.mark.more
@pytest.mark.heavy
def test_the_command_as_a_process_answers_with_its_exit_code_and_nothing_else(commands: Commands, books: Books) -> None:
    books.start(orders(20))
    books.drain()
    books.start(orders(1, name="lost"))
    books.change("DELETE FROM stagepost_ready")
    answer = commands.start("audit").answer()
    assert (answer.code, answer.err) == (1, "")
    assert "21 flows: 20 completed, 0 ended in a dead letter, 1 under way" in answer.out
    assert "flow lost0" in answer.out
