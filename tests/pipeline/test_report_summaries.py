"""The summaries of reports, which a notebook shows. Spark is not needed."""

from __future__ import annotations

from typing import Any

import pytest

from stagepost.pipeline.jobs.reconcile import ReconcileReport
from stagepost.pipeline.jobs.reconcile_rows import RowsReport
from stagepost.pipeline.transforms.deliveries import VERDICTS
from stagepost.pipeline.transforms.row_verdicts import VERDICTS as ROW_VERDICTS
from tests.pipeline.test_audit_page import a_report


def rows_report(*, held: int | None = 0, **counts: int) -> RowsReport:
    listed: list[dict[str, Any]] = [{"flow_id": f"pay:{number}\x1b[31m"} for number in range(counts.get("lost", 0))]
    return RowsReport(
        url="sqlite:////data/bank.db",
        stage="pay",
        seen_until="2026-03-01T12:00:00+00:00",
        proved_from=None,
        rows=1_207,
        counts={**dict.fromkeys((*ROW_VERDICTS, "unreadable"), 0), **counts},
        amount=None,
        committed_amount=None,
        held=held,
        buckets=64,
        differing=1,
        findings={"lost": listed, "unreadable": [{"place": "rows.csv:3", "reason": "no amount"}]},
    )


def test_a_report_on_rows_is_shown_as_a_verdict_with_its_first_findings() -> None:
    assert repr(rows_report(ok=1_200, lost=7, in_flight=2)).splitlines() == [
        "RowsReport: rows and committed messages differ, 1,207 rows against the stage pay of sqlite:////data/bank.db",
        "  ok 1,200, lost 7, in flight 2",
        "  lost: " + ", ".join(f"pay:{number}\\x1b[31m" for number in range(5)) + ", … 2 more",
        "  unreadable: rows.csv:3",
        "  as_dict() has all figures and findings",
    ]


@pytest.mark.parametrize(("held", "shown"), [(None, "unknown"), (3, "3 started flows")])
def test_a_report_on_rows_says_what_is_not_in_the_queue_yet(held: int | None, shown: str) -> None:
    text = repr(rows_report(held=held, ok=1))
    assert f"RowsReport: rows and committed messages are the same, not in the queue yet: {shown}, " in text


def test_a_report_on_services_is_shown_with_the_sums_of_its_addresses() -> None:
    counts = dict.fromkeys(VERDICTS, 0)
    addresses = [{"address": each, "sent": 5, **counts, "ok": 4, "lost": 1, "windows": 1} for each in ("a", "b")]
    services = [{"url": "sqlite:////data/a.db"}, {"url": "sqlite:////data/b.db"}]
    assert repr(ReconcileReport(services, addresses, [], [{"flow_id": "order:7"}], [], [])).splitlines() == [
        "ReconcileReport: messages were lost, or arrived twice, between sqlite:////data/a.db and sqlite:////data/b.db",
        "  sent 10, ok 8, lost 2",
        "  lost: order:7",
        "  as_dict() has all figures and findings",
    ]


def test_an_audit_is_shown_outside_of_a_notebook_as_its_verdict() -> None:
    lost = a_report(lost_count=1, lost=[{"flow_id": "order:7"}], is_complete=False)
    assert repr(lost).splitlines() == [
        "AuditReport: messages are lost or doubled, and the audit is not complete, in sqlite:////data/shop.db",
        "  flows 120, completed 117, dead 2, under way 1, lost 1",
        "  lost: order:7",
        "  as_dict() has all figures and findings",
    ]
