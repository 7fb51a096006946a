"""Undo the effects that no commit kept.

The commit that ends a message sends an order for each open effect that its attempt was not given. Such a handler took
another branch, or the message was refused, answered with a failure, or buried. The order goes to a stage of the
effect's own. That stage waits until the call is over, asks about an unknown result, and runs the undo, which is an
effect itself. It never makes the call that it undoes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from stagepost.flow import codec, ids
from stagepost.flow.claim import Claim
from stagepost.flow.context import Context, unit_of_work_of
from stagepost.flow.effects import UNDO_SUFFIX, Effect, OutsideFunction, UndoOrder, UndoRequest
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.initiation import Outgoing
from stagepost.flow.target import Position
from stagepost.ports.dead_letters import DeadLetter, KeptLetter, Selection
from stagepost.ports.effects import LoggedEffect
from stagepost.ports.session import Session
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.stage import Handler, Stage

# The audit tells sends apart by their ordinals. Those of the orders of two ends of a message differ, within 31 bits.
ORDINALS_A_TOKEN = 1_000
ORDINAL_LIMIT = 2**31

logger = logging.getLogger(__name__)


def undo_stage(effect: Effect[Any, Any], redelivery: Redelivery, time_limit_seconds: float, pause_after: int) -> Stage:
    """Build the stage that undoes an effect."""
    position = Position(effect.undo_at, effect.undo_at, None, None, None)
    undo = undo_effect(effect)
    return Stage(
        position=position,
        handlers=[Handler(position, UndoOrder, partial(_undo, effect, undo), False, {})],
        by_type=None,
        is_async=False,
        redelivery=redelivery,
        time_limit_seconds=time_limit_seconds,
        declared_at=effect.declared_at,
        pause_after=pause_after,
        effects=(effect,),
        undoes=effect.name,
    )


def undo_effect(effect: Effect[Any, Any]) -> Effect[UndoRequest, None]:
    """Build the effect that is the undo of another one."""

    def call(wanted: UndoRequest, *, key: str, timeout: float) -> None:
        assert effect.undo is not None, "an effect without undo is doubted"
        given = [codec.decode(wanted.request, effect.request_type)]
        if effect.result_type is not None:
            given.append(codec.decode(wanted.result, effect.result_type))
        effect.undo(*given, key=key, timeout=timeout)

    return Effect(
        name=f"{effect.name}{UNDO_SUFFIX}",
        request_type=UndoRequest,
        result_type=None,
        call=OutsideFunction(call, frozenset({"key", "timeout"})),
        query=None,
        undo=None,
        timeout_seconds=effect.timeout_seconds,
        settle_after_seconds=effect.settle_after_seconds,
        undo_at=effect.undo_at,
        declared_at=effect.declared_at,
    )


def _undo(effect: Effect[Any, Any], undo: Effect[UndoRequest, None], ctx: Context, order: UndoOrder) -> None:
    unit_of_work = unit_of_work_of(ctx)
    found = unit_of_work.effect_to_undo(effect, order)
    if found is not None:
        row, request = found
        ctx.effect(undo, request)
        unit_of_work.effect_undone(row)


def orders_of(log: EffectLog, claim: Claim, not_kept: Iterable[LoggedEffect]) -> list[Outgoing]:
    """Build the orders to undo these effects, for the commit that ends their message."""
    orders: list[Outgoing] = []
    for logged in not_kept:
        effect = log.effects.get(logged.id.name)
        if effect is None:
            # The app no longer declares it, so no stage could undo it.
            log.doubt(logged)
        else:
            ordinal = (claim.deliveries * ORDINALS_A_TOKEN + len(orders)) % ORDINAL_LIMIT
            orders.append(_order(effect, logged, claim, ordinal, log.clock.now()))
    return orders


def _order(effect: Effect[Any, Any], logged: LoggedEffect, claim: Claim, ordinal: int, now: int) -> Outgoing:
    order = codec.encode(UndoOrder(logged.id, logged.generation), UndoOrder)
    envelope = Envelope(
        message_id=order_id(logged, claim.deliveries),
        flow_id=claim.flow_id,
        kind="send",
        to=effect.undo_at,
        sender=claim.stage,
        messages=(Message(UndoOrder.__name__, order),),
        origin_at=claim.origin_at,
        sent_at=now,
        cause_id=claim.message_id,
        ordinal=ordinal,
    )
    return Outgoing(envelope, None)


def order_id(logged: LoggedEffect, token: int) -> str:
    """Return the id of the order to undo an effect, which the claim with this token sent."""
    effect = logged.id
    place = ids.SEPARATOR.join((effect.name, str(logged.generation), str(token)))
    return ids.derived(
        effect.message_id, effect.stage, effect.message_index, "undo", place, effect.ordinal, effect.handler or None
    )


def open_effects(log: EffectLog | None, letter: DeadLetter) -> list[LoggedEffect]:
    """Return the effects of a dead letter's message whose undo has not ended. Raises ``StoreError``."""
    if log is None:
        return []
    with log.reading() as effects:
        return [each for each in effects.of_message(letter.message_id, letter.stage) if each.is_open]


def dead_undo(session: Session, letter: DeadLetter, effects: Iterable[LoggedEffect]) -> KeptLetter | None:
    """Return the dead letter of the order to undo one of the effects of a dead letter, if there is one."""
    for each in effects:
        wanted = Selection("message", order_id(each, letter.deliveries))
        found = next(iter(session.dead_letters.select(wanted)), None)
        if found is not None:
            return found
    return None
