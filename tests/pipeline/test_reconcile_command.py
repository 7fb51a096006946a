"""``stagepost reconcile``: two services' stores against each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame

from stagepost.cli import reconcile as command
from stagepost.cli.main import main
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.pipeline.jobs import reconcile as job
from stagepost.pipeline.transforms.deliveries import per_message
from stagepost.ports.declarations import Declaration
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.session import Session
from stagepost.runtime.databases import open_store
from stagepost.testing.contract.givens import committed
from tests.pipeline.commands import Answer, Cli


class Service:
    """A store whose journal is written by hand, an hour ago."""

    def __init__(self, url: str, *stages: str) -> None:
        self.url = url
        self._store = open_store(url)
        self._at = SystemClock().now() - 3600 * SECOND
        with closing(self.session()) as session, committed(session):
            session.declarations.put([Declaration(each, each, "app") for each in stages])

    def session(self) -> Session:
        return self._store.session()

    def record(self, name: WaypointName, stage: str, messages: Sequence[str], *, seconds: int = 0) -> None:
        moment = self._at + seconds * SECOND
        with closing(self.session()) as session, committed(session):
            session.journal.record(
                [Waypoint(name, moment, "n", stage, each, f"f-{each}", 0, moment, kind="send") for each in messages]
            )

    def leave(self, messages: Sequence[str], *, to: str = "ledger.book", seconds: int = 0) -> None:
        for name in ("sent", "confirmed"):
            self.record(name, f"@out/{to}", messages, seconds=seconds)


@pytest.fixture
def payments(tmp_path: Path) -> Service:
    return Service(f"sqlite:///{tmp_path}/payments.db", "payments.pay")


@pytest.fixture
def ledger(tmp_path: Path) -> Service:
    return Service(f"sqlite:///{tmp_path}/ledger.db", "ledger.book")


def reconcile(cli: Cli, ours: Service, *words: str) -> Answer:
    return cli("reconcile", "--json", *words, url=ours.url)


def row_of(answer: Answer, address: str) -> dict[str, Any]:
    (row,) = [each for each in answer.json["addresses"] if each["address"] == address]
    return {name: value for name, value in row.items() if value and name != "address"}


def test_messages_between_two_services_are_reconciled_in_both_directions(
    cli: Cli, payments: Service, ledger: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"m{number}" for number in range(50)]
    payments.leave(many)
    ledger.record("arrived", "ledger.book", many[::-1])
    ledger.leave(["answer"], to="payments.pay")
    payments.record("arrived", "payments.pay", ["answer"])
    payments.leave(["letter"], to="post.send")
    monkeypatch.setenv("LEDGER", ledger.url)
    by_id: list[int] = []

    def counted(lines: DataFrame) -> DataFrame:
        by_id.append(lines.count())
        return per_message(lines)

    monkeypatch.setattr(job, "per_message", counted)
    answer = reconcile(cli, payments, "--with", "env:LEDGER")
    assert answer.code == 0, answer.err
    assert answer.json["clean"] is True
    assert row_of(answer, "ledger.book") == {"sent": 50, "ok": 50, "windows": 1}
    assert row_of(answer, "payments.pay") == {"sent": 1, "ok": 1, "windows": 1}
    assert answer.json["elsewhere"] == [{"address": "post.send", "sent": 1}]
    assert by_id == [], "no window differs"
    # In another window one message is lost, and one arrives twice.
    payments.leave(["lost", "twice"], seconds=600)
    payments.leave(["later"], seconds=1_200)
    ledger.record("arrived", "ledger.book", ["twice", "twice"], seconds=600)
    ledger.record("arrived", "ledger.book", ["later"], seconds=1_200)
    answer = reconcile(cli, ledger, "--with", payments.url)
    assert answer.code == 1, answer.err
    assert row_of(answer, "ledger.book") == {
        "sent": 53,
        "ok": 51,
        "lost": 1,
        "duplicated": 1,
        "windows": 3,
        "differing": 1,
    }
    assert [(each["message_id"], each["flow_id"]) for each in answer.json["lost"]] == [("lost", "f-lost")]
    assert [each["message_id"] for each in answer.json["duplicated"]] == ["twice"]
    assert by_id == [6], "the window that differs has two lines of each event"
    # A third service receives at an address that was not compared before. Its window is equal.
    post = Service(f"sqlite:///{tmp_path}/post.db", "post.send")
    post.record("arrived", "post.send", ["letter"])
    payments.leave(["parcel"], to="depot.send")
    shown = cli("reconcile", "--with", payments.url, "--with", post.url, url=ledger.url)
    assert shown.code == 1
    assert "messages were lost, or arrived twice" in shown.out
    assert "f-lost" in shown.out
    assert "to depot.send, of no service here" in shown.out
    assert "to post.send, of no service here" not in shown.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name the store of each other one with --with URL"),
        (["--with", "env:NOT_SET"], "the variable NOT_SET is not set"),
        (["--with", "postgresql://me:secret@here/db"], "--with contains a password"),
        (["--with", "sqlite:///nowhere.db"], "nowhere.db"),
        (["--with", "OURS"], "--with names a store twice, or a copy of one"),
    ],
    ids=str,
)
def test_services_that_cannot_be_compared_are_refused_before_java_starts(
    payments: Service, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr(command, "session", lambda *_: pytest.fail("Java was started"))
    given = [payments.url if each == "OURS" else each for each in words]
    done = CliRunner().invoke(main, ["reconcile", "--database", payments.url, *given])
    assert (done.exit_code, says in done.stderr) == (2, True) or (done.exit_code == 3 and says in done.stderr), (
        done.stderr
    )
    assert "secret" not in done.output
