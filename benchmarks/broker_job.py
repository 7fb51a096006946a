"""The measured jobs over a broker, for a worker process: a stage that passes a message on, and a flow of three stages.

``BENCH_BATCH`` is the batch of the stage. ``BENCH_PREFIX`` begins all names, because a broker keeps its addresses.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from stagepost import App, Context, Target

BATCH, PREFIX = "BENCH_BATCH", "BENCH_PREFIX"
prefix = os.environ.get(PREFIX, "")
# Milliseconds since 1970, when the row was written.
TABLE = "CREATE TABLE entry (n bigint NOT NULL, stage int NOT NULL, at double precision NOT NULL)"
INSERT = "INSERT INTO entry (n, stage, at) VALUES (:n, :stage, :at)"


@dataclass
class Item:
    n: int
    # It has the size of a small order.
    text: str


app = App(f"{prefix}bench")
abroad: Target[Item, Any] = app.remote(f"{prefix}elsewhere.take", Item)


@app.endpoint(f"{prefix}bench.pass", batch=int(os.environ.get(BATCH, "1")))
def pass_on(ctx: Context, item: Item) -> None:
    ctx.sql(INSERT, n=item.n, stage=1, at=0.0)
    ctx.send(abroad, item)


# Each of its messages goes over the broker.
flow = App(f"{prefix}flow", local=False)


@flow.endpoint(f"{prefix}flow.third")
def third(ctx: Context, item: Item) -> None:
    ctx.sql(INSERT, n=item.n, stage=3, at=time.time() * 1000)


@flow.endpoint(f"{prefix}flow.second")
def second(ctx: Context, item: Item) -> None:
    ctx.sql(INSERT, n=item.n, stage=2, at=0.0)
    ctx.send(third, item)


@flow.endpoint(f"{prefix}flow.first")
def first(ctx: Context, item: Item) -> None:
    ctx.sql(INSERT, n=item.n, stage=1, at=0.0)
    ctx.send(second, item)
