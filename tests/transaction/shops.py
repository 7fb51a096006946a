"""A shop whose one stage calls an effect and writes a ledger, and ways to kill what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.ports.effects import EffectFigures, LoggedEffect
from stagepost.runtime.assembly import queue_commit_of
from stagepost.testing import Harness
from stagepost.transaction.outcome import Died
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Halt, Step
from tests.transaction.outside import CaptureRequest, Cards, card_of

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str
    amount: int = 100


class Shop:
    """An app whose one stage captures a card and writes a ledger. ``after`` runs between the two."""

    def __init__(self, app: App, ledger: Ledger, cards: Cards, harness: NewHarness, **options: Any) -> None:
        self.app = app
        self.cards = cards
        self.after: Callable[[Context], None] = lambda ctx: None
        self.is_free: Callable[[Context], bool] = lambda ctx: False
        self.catches: type[Exception] | None = None
        self.amounts: Callable[[Order], int] = lambda order: order.amount
        self._is_refusing = False
        self.steps: list[Step] = []
        self.harness = harness
        self._victims = 0
        card = card_of(app, cards, **options)

        @app.endpoint("pay", redelivery=Redelivery.fixed(every_seconds=1, times=3))
        def pay(ctx: Context, order: Order) -> None:
            if self.is_free(ctx):
                ledger.write(ctx, f"{order.id} free")
                return
            try:
                capture = ctx.effect(card, CaptureRequest(order.id, self.amounts(order)))
            except Exception as error:
                if self._is_refusing:
                    self._is_refusing = False
                    ctx.refuse(str(error))
                if self.catches is None or not isinstance(error, self.catches):
                    raise
                ledger.write(ctx, f"{order.id} free")
                return
            self.after(ctx)
            ledger.write(ctx, f"{order.id} {capture.id}")

        self.card = card
        self.pay = pay
        engine_of(app).listener = lambda step, claim: self.steps.append(step)

    @property
    def app_clock(self) -> Clock:
        return engine_of(self.app).clock

    def redeliveries_end(self) -> None:
        """Make the next failure of a call the last one."""
        self._is_refusing = True

    def start(self, order: Order | None = None) -> None:
        self.app.start(self.pay, order or Order("o1"), flow_id="order:1")

    def drain(self) -> list[type]:
        harness = self.harness(owner="harness/drain")
        outcomes = [type(each) for each in harness.drain()]
        harness.close()
        return outcomes

    def crash(self, step: Step, number: int = 1, *, is_seen: bool = True) -> None:
        """Run the message, and stop as a killed process would when it passes the step for the ``number``-th time.

        With ``is_seen`` another process sees the death. Otherwise the claim is given back, as from a paused process.
        """
        left = number

        def listen(passed: Step, claim: Claim) -> None:
            nonlocal left
            left -= passed is step
            if not left:
                raise Halt

        self._victims += 1
        engine_of(self.app).listener = listen
        victim = self.harness(owner=f"harness/victim{self._victims}")
        with pytest.raises(Halt):
            victim.drain()
        victim.access.rollback()
        engine_of(self.app).listener = lambda step, claim: self.steps.append(step)
        assert victim.running is not None
        self.take_over(victim.running, is_seen=is_seen)

    def take_over(self, claim: Claim, *, is_seen: bool) -> None:
        engine = engine_of(self.app)
        survivor = self.harness(owner="harness/survivor")
        if is_seen:
            settlement = Settlement(queue_commit_of(engine, survivor.access, survivor.node))
            settlement.settle(engine.stages()[claim.stage], claim, Died(0, "killed"))
        else:
            survivor.access.claimer.release([claim], survivor.node)
        survivor.close()

    def log(self) -> list[LoggedEffect]:
        apart = engine_of(self.app).store.apart.session()
        found = apart.effects.of_flow("order:1")
        apart.close()
        return found

    def figures(self) -> EffectFigures:
        apart = engine_of(self.app).store.apart.session()
        found = apart.effects.figures()
        apart.close()
        return found


def raising_once(error: Exception) -> Callable[[], None]:
    errors = iter([error])
    return lambda: raise_next(errors)


def raising_once_with_context(error: Exception) -> Callable[[Context], None]:
    errors = iter([error])
    return lambda ctx: raise_next(errors)


def raise_next(errors: Any) -> None:
    error = next(errors, None)
    if error is not None:
        raise error
