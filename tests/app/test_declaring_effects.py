"""Every effect that cannot work is refused when it is declared, or when its app starts, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stagepost import App, CapabilityMissing, Context, DeclarationError, Effect
from stagepost.app.app import engine_of


@dataclass
class Request:
    amount: int


@dataclass
class Capture:
    id: str


def capture(request: Request, *, key: str, timeout: float) -> Capture:
    return Capture(f"{key} {timeout:g}")


def find(request: Request, *, key: str) -> Capture | None:
    return None


def no_annotation(request, *, key: str) -> Capture:  # type: ignore[no-untyped-def]  # the mistake under test
    return Capture("")


def no_result(request: Request):  # type: ignore[no-untyped-def]  # the mistake under test
    return Capture("")


def sends(request: Request) -> None:
    return None


async def later(request: Request) -> Capture:
    return Capture("")


def takes_more(request: Request, account: str) -> Capture:
    return Capture(account)


def takes_text(request: str) -> Capture:
    return Capture(request)


def finds_always(request: Request) -> Capture:
    return Capture("")


def finds_other(request: Capture) -> Capture | None:
    return None


def void(request: Request, capture: Capture) -> None:
    return None


def voids_with_account(request: Request, capture: Capture, account: str) -> None:
    return None


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({"call": no_annotation}, "with its type annotated", id="request without annotation"),
        pytest.param({"call": no_result}, "has no return annotation", id="result without annotation"),
        pytest.param({"call": later}, "must be a plain function", id="async call"),
        pytest.param({"call": takes_more}, "it may take key", id="further arguments"),
        pytest.param({"call": takes_text}, "not a dataclass or a msgspec.Struct", id="request that is no record"),
        pytest.param({"call": print}, "must be a function", id="call that is no function"),
        pytest.param({"call": capture, "query": finds_always}, "or None where the outside has none", id="query"),
        pytest.param({"call": capture, "query": finds_other}, "must take the request", id="query of another request"),
        pytest.param({"call": sends, "query": find}, "call= returns None", id="query without a result"),
        pytest.param({"call": capture, "undo": find}, "must take the request and the result", id="undo"),
        pytest.param({"call": capture, "undo": voids_with_account}, "it may take key", id="undo with more arguments"),
        pytest.param({"call": capture, "timeout": 60}, "Make timeout the shorter one", id="timeout of settle_after"),
        pytest.param({"call": capture, "timeout": 0}, "a number of seconds above 0", id="no timeout"),
        pytest.param({"call": capture, "settle_after": "x"}, "or a timedelta", id="settle_after that is no number"),
    ],
)
def test_an_effect_that_cannot_work_is_refused_when_declared(app: App, options: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        app.effect("card", **options)


def test_a_name_that_is_taken_or_malformed_is_refused(app: App) -> None:
    app.effect("card", call=capture)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.effect("card", call=capture)
    with pytest.raises(DeclarationError, match="cannot be an effect's name"):
        app.effect("card/undo", call=capture)


def test_the_types_and_the_limits_are_read(app: App) -> None:
    card = app.effect("card", call=capture, query=find, timeout=timedelta(seconds=5), settle_after=10)
    assert (card.request_type, card.result_type) == (Request, Capture)
    assert (card.timeout_seconds, card.settle_after_seconds) == (5, 10)
    assert card.call(Request(1), key="k", timeout=5) == Capture("k 5")


def test_an_effect_has_a_stage_that_undoes_it(app: App) -> None:
    app.effect("card", call=capture, undo=void)

    @app.endpoint("pay")
    def pay(ctx: Context, request: Request) -> None: ...

    assert engine_of(app).modes() == {"pay": "single", "shop.undo.card": "single"}
    with pytest.raises(DeclarationError, match="declared twice"):

        @app.endpoint("shop.undo.card")
        def card(ctx: Context, request: Request) -> None: ...


def test_an_effect_whose_undo_has_the_name_of_an_endpoint_is_refused(app: App) -> None:
    @app.endpoint("shop.undo.card")
    def card(ctx: Context, request: Request) -> None: ...

    with pytest.raises(DeclarationError, match="an endpoint has that name"):
        app.effect("card", call=capture)


def test_a_batched_stage_with_an_effect_is_refused_when_declared(app: App) -> None:
    card = app.effect("card", call=capture)
    with pytest.raises(DeclarationError, match=r"calls the effect card, and it has batch=10\. .* a stage of its own"):

        @app.endpoint("pay", batch=10)
        def pay(ctx: Context, request: Request) -> None:
            ctx.effect(card, request)


def test_a_batched_stage_with_an_effect_in_a_later_handler_is_refused_when_declared(app: App) -> None:
    card = app.effect("card", call=capture)

    @app.endpoint("pay", batch=10)
    def pay(ctx: Context, request: Request) -> None: ...

    with pytest.raises(DeclarationError, match=r"calls the effect card, and it has batch=10"):

        @pay.handler
        def insure(ctx: Context, request: Request) -> None:
            def call() -> None:
                ctx.effect(card, request)

            call()


def test_an_effect_in_the_mode_outbox_is_refused_at_start(tmp_path: Path) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", queue=f"sqlite:///{tmp_path / 'queue.db'}")
    card = app.effect("card", call=capture)

    @app.endpoint("pay")
    def pay(ctx: Context, request: Request) -> None:
        ctx.effect(card, request)

    with pytest.raises(DeclarationError, match=r"it has the mode outbox\. Effects need .* two_phase"):
        app.start(pay, Request(1), flow_id="f")


def test_an_effect_that_no_stage_could_call_is_refused_at_start_and_the_app_can_be_closed(tmp_path: Path) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", queue=f"sqlite:///{tmp_path / 'queue.db'}")
    app.effect("card", call=capture)

    @app.endpoint("pay")
    def pay(ctx: Context, request: Request) -> None: ...

    with pytest.raises(DeclarationError, match=r"no stage can call the effect card .* Leave queue= out"):
        app.start(pay, Request(1), flow_id="f")
    app.close()


@pytest.mark.parametrize("has_its_own", [False, True])
def test_an_effect_of_another_app_is_refused_at_start(app: App, has_its_own: bool) -> None:
    card = App("other").effect("card", call=capture)
    if has_its_own:
        app.effect("card", call=capture)

    @app.endpoint("pay")
    def pay(ctx: Context, request: Request) -> None:
        ctx.effect(card, request)

    with pytest.raises(DeclarationError, match=r"calls the effect card of another app .* Declare it with this one"):
        app.start(pay, Request(1), flow_id="f")


def test_a_stage_of_the_mode_outbox_may_stand_beside_effects(tmp_path: Path) -> None:
    app = App("shop", database="postgresql://host/shop", queue="postgresql://host/queue")
    card = app.effect("card", call=capture)

    @app.endpoint("pay", mode="two_phase")
    def pay(ctx: Context, request: Request) -> None:
        ctx.effect(card, request)

    @app.endpoint("book")
    def book(ctx: Context, request: Request) -> None: ...

    assert {engine_of(app).modes()[each] for each in ("pay", "book")} == {"two_phase", "outbox"}


def test_a_store_without_the_capability_is_refused_at_start(toy_app: Callable[[], App]) -> None:
    app = toy_app()
    app.effect("card", call=capture)

    @app.endpoint("pay", pause_after=None)
    def pay(ctx: Context, request: Request) -> None: ...

    with pytest.raises(CapabilityMissing, match="effects"):
        engine_of(app).modes()


def test_an_effect_that_only_a_helper_calls_is_refused_by_the_call(app: App, harness_of: Callable[..., Any]) -> None:
    held = {"card": app.effect("card", call=capture)}

    @app.endpoint("pay", batch=10)
    def pay(ctx: Context, request: Request) -> None:
        helper(ctx, held["card"])

    app.start(pay, Request(1), flow_id="f")
    harness = harness_of(app)
    harness.drain()
    assert "calls an effect, which its stage cannot have" in harness.dead_letters()[0].causes[0].message


def test_an_effect_of_another_app_that_a_helper_calls_is_refused_by_the_call(
    app: App, harness_of: Callable[..., Any]
) -> None:
    app.effect("card", call=capture)
    held = {"card": App("other").effect("card", call=capture)}

    @app.endpoint("pay")
    def pay(ctx: Context, request: Request) -> None:
        helper(ctx, held["card"])

    app.start(pay, Request(1), flow_id="f")
    harness = harness_of(app)
    harness.drain()
    assert "calls the effect card of another app" in harness.dead_letters()[0].causes[0].message


def helper(ctx: Context, card: Effect[Request, Capture]) -> None:
    ctx.effect(card, Request(1))


@pytest.fixture
def toy_app() -> Callable[[], App]:
    return lambda: App("shop", database="toy:")
