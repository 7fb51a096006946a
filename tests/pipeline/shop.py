"""The app of these tests: a shop whose ledger is append-only and has no key, so that a duplicate shows.

An order passes four stages, each of which leaves one entry:

    shop.order         reserves, and asks
    shop.stock         which answers to
    shop.order.pack    which packs, and replies to
    shop.done

``shop.broken`` is another ``shop.stock``, for what is to go wrong at once. What else it can do is for files:
``shop.product`` takes a message with a field of each kind that a file has to fill.

An app lives in a module of its own, made by ``module_of``: Spark's Python processes serve many tests, and keep what
they once imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import ClassVar

from stagepost import (
    App,
    Context,
    IncomingEnvelope,
    OutgoingEnvelope,
    Redelivery,
    Sink,
    StagedEndpoint,
    Target,
)
from stagepost.flow.clock import Clock
from stagepost.recovery import suspicion
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import unobserved
from tests.faults.handler_faults import HANDLER_FAULTS, killed_once, wait_at

LEDGER = "CREATE TABLE IF NOT EXISTS ledger (flow_id TEXT NOT NULL, stage TEXT NOT NULL, quantity INTEGER NOT NULL)"
STAGES = ("shop.order", "shop.stock", "shop.order.pack", "shop.done")

_modules = count(1)


@dataclass
class Order:
    """``fault`` is ``what`` or ``what=argument``, met in ``shop.stock``: see ``tests.faults.handler_faults``."""

    order_id: str
    quantity: int
    fault: str = ""


@dataclass
class Ask:
    quantity: int
    fault: str


@dataclass
class InStock:
    quantity: int


@dataclass
class Packed:
    quantity: int


@dataclass
class Basket:
    order: Order | None = None


@dataclass
class Product:
    """One field of each kind: required and not, text and not, empty allowed and not."""

    sku: str
    name: str
    pieces: int
    price: Decimal
    colour: str | None
    weight: float | None
    brand: str = "none"
    rating: int = 3
    sold_out: bool = False
    added: date | None = None
    seen_at: datetime = datetime(2020, 1, 1, tzinfo=UTC)
    labels: list[str] = field(default_factory=list)


class NotForSale(Exception):
    """Not one of the errors that msgspec makes its own."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@dataclass
class Picky:
    sku: str

    def __post_init__(self) -> None:
        if self.sku == "forbidden":
            raise NotForSale(f"{self.sku} is not for sale")
        if self.sku == "mute":
            raise Mute


@dataclass
class Note:
    text: str


@dataclass
class Gated:
    """While ``gate`` is shut, the row of that name is not let into a message."""

    gate: ClassVar[str] = ""
    order_id: str
    quantity: int

    def __post_init__(self) -> None:
        if self.gate and self.order_id == "gate":
            Path(f"{self.gate}.entered").touch()
            wait_at(self.gate)


class LoggedSink(Sink):
    """Appends a line about each envelope to a file: its stage, and the calls that the sink got."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self.calls = [incoming.stage, "initialize"]

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        self.calls.append("before_commit")

    def success(self) -> None:
        self.calls.append("success")

    def failure(self, error: BaseException | None) -> None:
        self.calls.append(f"failure {error}")

    def dispose(self) -> None:
        with self.file.open("a") as file:
            file.write(" ".join([*self.calls, "dispose\n"]))


STOCK = Target("shop.stock", Ask, InStock)


def enter(ctx: Context, quantity: int) -> None:
    ctx.sql(
        "INSERT INTO ledger (flow_id, stage, quantity) VALUES (:flow, :stage, :quantity)",
        flow=ctx.flow_id,
        stage=ctx.stage,
        quantity=quantity,
    )


def order(ctx: Context, basket: Basket, order: Order) -> None:
    basket.order = order
    enter(ctx, order.quantity)
    ctx.request(STOCK, Ask(order.quantity, order.fault))


def stock(ctx: Context, ask: Ask) -> InStock:
    what, _, argument = ask.fault.partition("=")
    if what:
        HANDLER_FAULTS[what](ctx, argument)
    enter(ctx, ask.quantity)
    return InStock(ask.quantity)


async def later(ctx: Context, ask: Ask) -> None:
    """Handle an ``Ask`` as ``stock`` does, in a coroutine that lets others run."""
    await asyncio.sleep(0)
    stock(ctx, ask)
    await asyncio.sleep(0)


def pack(ctx: Context, basket: Basket, found: InStock) -> Packed:
    enter(ctx, found.quantity)
    return Packed(found.quantity)


def done(ctx: Context, packed: Packed) -> None:
    enter(ctx, packed.quantity)


def product(ctx: Context, product: Product) -> None:
    enter(ctx, product.pieces)


def picky(ctx: Context, picky: Picky) -> None:
    enter(ctx, 1)


def note(ctx: Context, note: Note) -> None:
    enter(ctx, 1)


def gated(ctx: Context, gated: Gated) -> None:
    enter(ctx, 1)


def open_shop(
    database: str | None = None,
    *,
    queue: str | None = None,
    mode: Mode | None = None,
    kill: str = "",
    time_limit: float = 600.0,
    yield_seconds: float | None = None,
    pause_after_death: float | None = 0.05,
    clock: Clock | None = None,
    gate: str = "",
    sink: str = "",
) -> App:
    """
    ``sink``  the file of a ``LoggedSink``
    ``kill``  ``step,stage,occurrence,marker``: SIGKILL there, once for all processes that share the marker file
    """
    if pause_after_death is not None:
        suspicion.PAUSE_SECONDS_FIRST = pause_after_death
    if yield_seconds is not None:
        from stagepost.runtime.watchdog import ThreadWatch

        ThreadWatch.__init__.__defaults__ = (yield_seconds,)
    Gated.gate = gate
    app = App(
        "shop",
        database=database,
        queue=queue,
        mode=mode,
        redelivery=Redelivery.exponential(2, first_seconds=0.05),
        time_limit=time_limit,
        clock=clock,
        listener=killed_once(kill) if kill else unobserved,
    )
    if sink:
        app.sink(lambda: LoggedSink(Path(sink)))
    orders: StagedEndpoint[Order, Packed] = app.staged("shop.order")
    orders.stage(order)
    orders.stage(pack)
    app.endpoint("shop.stock")(stock)
    app.endpoint("shop.broken")(stock)
    app.endpoint("shop.later")(later)
    app.endpoint("shop.done")(done)
    app.endpoint("shop.product")(product)
    app.endpoint("shop.picky")(picky)
    app.endpoint("shop.note")(note)
    app.endpoint("shop.gated")(gated)
    return app


def module_of(folder: Path, before: str = "", **settings: object) -> str:
    """Write a module with an app of these settings; returns its name, as commands take it. ``before`` is code that runs
    when it is imported."""
    name = f"shop_{os.getpid()}_{next(_modules)}"
    text = f"{before}\nfrom tests.pipeline.shop import open_shop\n\napp = open_shop(**{settings!r})\n"
    (folder / f"{name}.py").write_text(text)
    return f"{name}:app"
