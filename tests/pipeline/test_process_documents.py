"""Stages on Spark whose data is a document in a real Redis, and stages that start flows independently of themselves."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stagepost import App, Target
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.process import process
from stagepost.runtime.settings import Place
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.more

BANK = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from stagepost import App, Context
from stagepost.recovery import suspicion
from stagepost.store.document import in_document
from stagepost.store.document.redis import RedisDocuments

suspicion.PAUSE_SECONDS_FIRST = 0.1

@dataclass
class Booking:
    account: int
    cents: int

def strike(step, claim):
    if step != {step!r} or claim.stage != "accounts.book" or claim.flow_id != "booking:3":
        return
    try:
        Path({struck!r}).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

app = App("documented", listener=strike)
documents = RedisDocuments({redis!r})

@app.endpoint("accounts.book")
@in_document(documents, key="account:{{account}}", ids="processed", ids_max=4)
def book(ctx: Context, booking: Booking) -> None:
    ctx.document["cents"] = ctx.document.get("cents", 0) + booking.cents
    ctx.send(note, booking)

@app.endpoint("ledger.note")
def note(ctx: Context, booking: Booking) -> None:
    ctx.sql("INSERT INTO entry VALUES ('note', :account, :cents)", account=booking.account, cents=booking.cents)
    with ctx.initiate(independent=True) as out:
        out.send(tell, booking, flow_id="tell:%d" % booking.cents)

@app.endpoint("ledger.tell")
def tell(ctx: Context, booking: Booking) -> None:
    ctx.sql("INSERT INTO entry VALUES ('tell', :account, :cents)", account=booking.account, cents=booking.cents)
"""
BOOKINGS = 8


@dataclass
class Booking:
    account: int
    cents: int


@pytest.mark.parametrize("step", ["written", pytest.param("listed", marks=pytest.mark.soak)])
def test_documents_and_independent_flows_are_exactly_once_when_a_task_is_killed(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    redis_server.clear()
    url, struck, name = f"sqlite:///{tmp_path}/bank.db", tmp_path / "struck", f"documented_on_spark_{step}"
    (tmp_path / f"{name}.py").write_text(BANK.format(step=step, struck=str(struck), redis=redis_server.url))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with closing(sqlite3.connect(tmp_path / "bank.db")) as file:
        file.execute("CREATE TABLE entry (stage TEXT, account INTEGER, cents INTEGER)")
    app = App("documented", database=url)
    target: Target[Booking, None] = app.remote("accounts.book", Booking)
    for number in range(BOOKINGS):
        app.start(target, Booking(number % 2, 2**number), flow_id=f"booking:{number}")
    app.close()
    report = process(spark, ProcessingPlan(f"{name}:app", str(tmp_path), Place(url, None), "CRITICAL"))
    assert struck.exists()
    assert sum(report.committed.values()) == 3 * BOOKINGS
    wanted = [[2**number for number in range(BOOKINGS) if number % 2 == account] for account in range(2)]
    with redis_server.client() as client:
        bodies = [client.hget(f"account:{account}", "body") for account in range(2)]
    assert [json.loads(str(body, "utf-8"))["cents"] for body in bodies if isinstance(body, bytes)] == list(
        map(sum, wanted)
    )
    with closing(sqlite3.connect(tmp_path / "bank.db")) as file:
        rows = file.execute("SELECT stage, account, cents FROM entry ORDER BY cents").fetchall()
    for stage in ("note", "tell"):
        found = [[cents for name, at, cents in rows if (name, at) == (stage, account)] for account in range(2)]
        assert found == wanted, stage
