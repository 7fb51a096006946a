"""``stagepost audit --every``: each audit continues from the last one, whatever happens to one of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.cli.audit_series import AuditSeries
from stagepost.cli.interruption import StopRequest
from stagepost.cli.options import existing_store
from stagepost.flow.clock import SystemClock
from stagepost.pipeline.jobs import audit as audit_job
from stagepost.pipeline.jobs.audit import audit
from stagepost.pipeline.report.audit_report import AuditReport
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import Cli


@pytest.mark.more
def test_with_every_each_audit_continues_where_the_last_one_ended(
    cli: Cli, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, away = tmp_path / "shop.db", tmp_path / "away.db"
    turns: list[Callable[[], object]] = [
        lambda: books.start(orders(2)),
        lambda: file.rename(away),
        lambda: away.rename(file),
        lambda: monkeypatch.setattr(audit_job, "audit", fail_once),
        lambda: books.change("DELETE FROM stagepost_ready WHERE flow_id = 'o1'"),
    ]

    def fail_once(*_: object, **__: object) -> None:
        monkeypatch.setattr(audit_job, "audit", audit)
        raise audit_job.AuditFailed("the executors went away.")

    def wait(seconds: float, request: StopRequest, shown: object) -> None:
        assert seconds == 60
        if not turns:
            request.signal = signal.SIGINT
        request.check()
        turns.pop(0)()

    monkeypatch.setattr("stagepost.cli.audit.wait", wait)
    words = ("--state", str(tmp_path / "state"), "--every", "60")
    answer = cli.audit(*words)
    assert answer.code == 130
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert [(each["flows"]["flows"], each["lost_count"]) for each in found] == [(0, 0), (2, 0), (2, 0), (2, 1)]
    assert [each["continued_from"] is None for each in found] == [True, False, False, False]
    assert "shop.db does not exist" in answer.err
    assert "the executors went away. The next audit begins in 60 s." in answer.err
    shown = cli("audit", *words)
    assert shown.code == 130
    assert "2 flows, 2 under way   lost 1   doubled 0" in shown.out
    refused = cli.audit("--every", "60")
    assert (refused.code, "--every needs --state FOLDER" in refused.err) == (2, True)


@pytest.mark.more
def test_with_every_an_audit_that_another_one_overtook_is_followed_by_the_next(
    cli: Cli, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    turns: list[Callable[[], object]] = [
        lambda: books.start(orders(2)),
        lambda: monkeypatch.setattr(audit_job, "audit", overtaken),
        lambda: None,
    ]

    def overtaken(spark: SparkSession, url: str, **words: Any) -> AuditReport:
        monkeypatch.setattr(audit_job, "audit", audit)
        with existing_store(url) as (_, access):
            other = AuditSeries.begin(folder, access.session, SystemClock())
            found = audit(spark, url, **words)
            audit(spark, url, **{**words, "save_to": other.folder})
            other.end(access.session, [], words["until"], words["at"])
        return found

    def wait(seconds: float, request: StopRequest, shown: object) -> None:
        if not turns:
            request.signal = signal.SIGINT
        request.check()
        turns.pop(0)()

    monkeypatch.setattr("stagepost.cli.audit.wait", wait)
    monkeypatch.setattr(audit_job, "audit", overtaken)
    answer = cli.audit("--state", str(folder), "--every", "60")
    assert answer.code == 130
    assert answer.err.count("it continues from that state. The next audit begins in 60 s.") == 2
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert [each["flows"]["flows"] for each in found] == [2, 2]
    assert [each["continued_from"] is None for each in found] == [False, False]
    # Without --every it fails.
    monkeypatch.setattr(audit_job, "audit", overtaken)
    assert cli.audit("--state", str(folder)).code == 2


@pytest.mark.more
def test_an_audit_whose_former_state_another_one_removed_is_followed_by_the_next(
    cli: Cli, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other audit ends while this one starts Spark."""
    folder = tmp_path / "state"
    books.start(orders(2))
    assert cli.audit("--state", str(folder)).code == 0

    def overtaken(spark: SparkSession, url: str, **words: Any) -> AuditReport:
        monkeypatch.setattr(audit_job, "audit", audit)
        with existing_store(url) as (_, access):
            other = AuditSeries.begin(folder, access.session, SystemClock())
            audit(spark, url, **{**words, "save_to": other.folder})
            other.end(access.session, [], words["until"], words["at"])
        return audit(spark, url, **words)

    def wait(seconds: float, request: StopRequest, shown: object) -> None:
        if not turns:
            request.signal = signal.SIGINT
        request.check()
        turns.pop()

    turns = [1]
    monkeypatch.setattr("stagepost.cli.audit.wait", wait)
    monkeypatch.setattr(audit_job, "audit", overtaken)
    answer = cli.audit("--state", str(folder), "--every", "60")
    assert answer.code == 130
    assert answer.err.count("it continues from that state. The next audit begins in 60 s.") == 1
    assert [json.loads(line)["flows"]["flows"] for line in answer.out.splitlines()] == [2]
    monkeypatch.setattr(audit_job, "audit", overtaken)
    refused = cli.audit("--state", str(folder))
    assert (refused.code, "audit-conflict" in refused.err) == (2, True)
