"""Two things that cannot work together in one stage are refused when they are declared, each pair with its remedy.

What depends on the databases of the settings is refused when the app is first used, before any of them opens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stagepost import App, Context, DeclarationError, Sink
from stagepost.app.app import engine_of
from stagepost.store.document import in_document
from stagepost.store.document.memory import MemoryDocuments

BROKER = {"broker": "memory:pairs"}
QUEUE = {"queue": "sqlite:///queue.db"}
IN_DOCUMENT = in_document(MemoryDocuments(), key="order:{id}", ids="done")


@dataclass
class Order:
    id: str


@dataclass
class Pair:
    """A stage's ``settings`` and what it ``uses``, its app's ``place``, and words of the remedy.

    ``at_start`` says that the pair depends on the place.
    """

    name: str
    uses: str
    settings: dict[str, Any]
    remedy: str
    place: dict[str, Any] | None = None
    at_start: bool = False


PAIRS = [
    Pair("effect and batch", "effect", {"batch": 5}, "Give the call a stage of its own"),
    Pair("effect and best_effort", "effect", {"mode": "best_effort"}, "Give the call a stage of its own", BROKER),
    Pair("effect and transport", "effect", {"mode": "transport"}, "Give the call a stage of its own", BROKER),
    Pair("effect and business key", "effect", {"key": ("id",)}, "Give the call a stage of its own"),
    Pair("effect and outbox", "effect", {}, "Give the call a stage of its own", QUEUE, at_start=True),
    Pair("effect and document", "effect in document", {}, "Give the call a stage of its own"),
    Pair("session and transport", "session", {"mode": "transport"}, "Use mode='best_effort'", BROKER),
    Pair("session and app of transport", "session", {}, "Use mode='best_effort'", BROKER | {"mode": "transport"}),
    Pair("service and no scopes", "service", {}, "Give it some: App(…, scopes=…)"),
    Pair("document and batch", "document", {"batch": 5}, "Leave batch= out"),
    Pair("document and guard", "document", {"guard": "reactive"}, "leave guard= and key= out"),
    Pair("document and key", "document", {"key": ("id",)}, "leave guard= and key= out"),
    Pair("document and queue", "document", {}, "leave queue= and mode= out", QUEUE, at_start=True),
    Pair("document and outbox", "document", {"mode": "outbox"}, "leave queue= and mode= out", BROKER, at_start=True),
    Pair("guard none and key", "", {"guard": "none", "key": ("id",)}, "Leave guard= out"),
    Pair("batch and queue", "", {"batch": 5}, "Leave it out there", QUEUE, at_start=True),
    Pair("batch and best_effort", "", {"batch": 5, "mode": "best_effort"}, "Leave batch= out", BROKER, at_start=True),
    Pair("batch and own transaction of a sink", "sink", {"batch": 5}, "Declare pay without batch="),
    Pair("single and queue", "", {"mode": "single"}, "Leave it out for outbox", QUEUE, at_start=True),
    Pair("two_phase and SQLite", "", {"mode": "two_phase"}, "Leave it out for outbox", QUEUE, at_start=True),
    Pair("outbox and no queue", "", {"mode": "outbox"}, "Leave it out", at_start=True),
    Pair("transport and no broker", "", {"mode": "transport"}, "Name one with broker=", at_start=True),
    Pair("best_effort and queue", "", {"mode": "best_effort"}, "Leave queue= out", BROKER | QUEUE, at_start=True),
    Pair("transport and key", "", {"mode": "transport", "key": ("id",)}, "guard= out", BROKER, at_start=True),
    Pair("transport and guard", "", {"mode": "transport", "guard": "reactive"}, "guard= out", BROKER, at_start=True),
    Pair("guard and single", "", {"guard": "reactive"}, "Leave it out", at_start=True),
]  # fmt: skip


def capture(order: Order) -> None: ...


def handler_of(app: App, uses: str) -> Callable[..., Any]:
    card = app.effect("card", call=capture)

    def plain(ctx: Context, order: Order) -> None: ...

    def calling(ctx: Context, order: Order) -> None:
        ctx.effect(card, order)

    def in_session(ctx: Context, order: Order) -> None:
        ctx.session.flush()

    def with_service(ctx: Context, order: Order, *, ledger: Order) -> None: ...

    @IN_DOCUMENT
    def documented(ctx: Context, order: Order) -> None: ...

    @IN_DOCUMENT
    def calling_in_document(ctx: Context, order: Order) -> None:
        ctx.effect(card, order)

    uses_of: dict[str, Callable[..., Any]] = {
        "effect": calling,
        "effect in document": calling_in_document,
        "session": in_session,
        "service": with_service,
        "document": documented,
    }
    return uses_of.get(uses, plain)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name.replace(" ", "_"))
def test_a_pair_that_cannot_work_is_refused_with_its_remedy(pair: Pair) -> None:
    app = App("shop", database="sqlite:///never_opened.db", **(pair.place or {}))
    if pair.uses == "sink":
        app.sink(owns_transaction=True)(Sink)
    handler = handler_of(app, pair.uses)
    if not pair.at_start:
        with pytest.raises(DeclarationError) as refused:
            app.endpoint("pay", **pair.settings)(handler)
    else:
        app.endpoint("pay", **pair.settings)(handler)
        with pytest.raises(DeclarationError) as refused:
            engine_of(app).modes()
    assert pair.remedy in str(refused.value)
