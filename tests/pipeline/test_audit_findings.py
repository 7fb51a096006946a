"""The findings of audits: one row each in the store, and one message each to an endpoint, for all audits together."""

from __future__ import annotations

from typing import Any

import pytest

from stagepost.app.app import engine_of
from stagepost.cli.findings import findings_of, flow_id_of, keep, send
from stagepost.ports.audits import AuditFinding
from tests.pipeline.books import SqliteBooks, orders
from tests.pipeline.commands import Cli

LOST = AuditFinding("lost", "shop.order", "m1", "o1")
DOUBLED = AuditFinding("doubled", "shop.order", "m1", "o1", "two commits of one message")
STUCK = AuditFinding("stuck", "shop.stock", "m2", "o2")
ENDPOINT = "ops.findings"


def sent(books: SqliteBooks) -> list[tuple[Any, ...]]:
    return books.rows("SELECT flow_id FROM stagepost_journal WHERE stage = 'ops.findings' AND waypoint = 'accepted'")


def kept(books: SqliteBooks) -> list[tuple[Any, ...]]:
    return books.rows("SELECT kind, message_id FROM stagepost_audit_finding ORDER BY kind, message_id")


def test_a_report_becomes_findings_of_each_kind() -> None:
    row = {"stage": "s", "message_id": "m", "flow_id": "f"}
    found = {"lost": [row], "doubled": [{**row, "how": "two commits of one message"}], "stuck": [row]}
    assert findings_of(found) == [
        AuditFinding("lost", "s", "m", "f"),
        AuditFinding("doubled", "s", "m", "f", "two commits of one message"),
        AuditFinding("stuck", "s", "m", "f"),
    ]


def test_each_finding_is_sent_once_however_often_it_is_found(books: SqliteBooks) -> None:
    assert send(ENDPOINT, books.url, [LOST, STUCK]) == 2
    assert send(ENDPOINT, books.url, [LOST, DOUBLED, STUCK]) == 1
    assert send(ENDPOINT, books.url, [DOUBLED, STUCK, LOST]) == 0
    assert {flow for (flow,) in sent(books)} == {flow_id_of(each) for each in (LOST, DOUBLED, STUCK)}


def test_a_finding_about_a_sent_finding_is_not_sent(books: SqliteBooks) -> None:
    """Else an endpoint without a worker would get more findings with each audit."""
    assert send(ENDPOINT, books.url, [AuditFinding("stuck", ENDPOINT, "m", flow_id_of(LOST))]) == 0
    assert sent(books) == []


def test_two_ways_of_doubling_a_message_are_two_findings() -> None:
    other = AuditFinding("doubled", "shop.order", "m1", "o1", "committed, and edited into another message")
    assert len({flow_id_of(each) for each in (LOST, DOUBLED, other)}) == 3


def test_findings_are_rows_of_the_store(books: SqliteBooks) -> None:
    session = engine_of(books.app).access().session
    keep(session, [], 1)
    assert kept(books) == []
    keep(session, [LOST, STUCK], 1)
    keep(session, [LOST], 2)
    assert kept(books) == [("lost", "m1"), ("stuck", "m2")]
    assert [each.last_at for each in session.audits.findings(10)] == [2, 1]
    session.close()


def test_an_endpoint_that_cannot_be_is_refused_before_anything_starts(cli: Cli) -> None:
    answer = cli("audit", "--findings-to", "no endpoint")
    assert (answer.code, answer.is_one_paragraph) == (2, True)


@pytest.mark.more
def test_the_command_keeps_and_sends_the_findings_of_its_report(cli: Cli, books: SqliteBooks) -> None:
    books.start(orders(3))
    books.drain()
    books.start(orders(1, name="lost"))
    books.change("DELETE FROM stagepost_ready")
    books.forge("committed", "flow_id = 'o2' AND stage = 'shop.stock'")
    first = cli("audit", "--findings-to", ENDPOINT)
    assert (first.code, "2 new findings of 2 sent to ops.findings" in first.err) == (1, True)
    second = cli("audit", "--findings-to", ENDPOINT)
    assert (second.code, "0 new findings of 2 sent to ops.findings" in second.err) == (1, True)
    assert [kind for kind, _ in kept(books)] == ["doubled", "lost"]
    assert len(sent(books)) == 2


@pytest.mark.more
def test_more_findings_than_are_listed_do_not_hide_a_new_one(cli: Cli, books: SqliteBooks) -> None:
    books.start(orders(101, name="old"))
    books.change("DELETE FROM stagepost_ready")
    books.change("UPDATE stagepost_journal SET at = at - 60000000, origin_at = origin_at - 60000000")
    first = cli.audit()
    assert (first.json["lost_count"], len(kept(books))) == (101, 100)
    assert cli.audit().json["lost"] == first.json["lost"]
    books.start(orders(1, name="new"))
    books.change("DELETE FROM stagepost_ready")
    second = cli.audit().json
    assert (second["lost_count"], second["lost"][0]["flow_id"]) == (102, "new0")
    assert second["lost"][1:] == first.json["lost"][:-1]
    assert len(kept(books)) == 101
