"""A shop on FastAPI and SQLAlchemy. A request writes its order and starts its flow in one transaction.

Then it waits for the reply. A client that repeats a request, because it got no answer, changes nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from stagepost import App, Context, FlowDied, ReplyFuture, ReplyTimeout

T = TypeVar("T")

REPLY_SECONDS = float(os.environ.get("REPLY_SECONDS", "5"))

shop = App("fastapi-shop")
web = FastAPI()


class Base(DeclarativeBase):
    pass


class Sale(Base):
    __tablename__ = "sale"

    order_id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    confirmations: Mapped[int] = mapped_column(default=0)


class Order(BaseModel):
    """The body of a request, and the message of its flow."""

    order_id: str
    amount: int = Field(gt=0)


class Receipt(BaseModel):
    order_id: str
    is_confirmed: bool


@shop.endpoint("orders.confirm")
def confirm(ctx: Context, order: Order) -> Receipt:
    sale = ctx.session.get(Sale, order.order_id)
    sale.confirmations += 1
    return Receipt(order_id=order.order_id, is_confirmed=True)


@web.post("/orders")
async def place(order: Order, request: Request, response: Response) -> Receipt:
    try:
        future = await run_in_threadpool(accept, order)
    except IntegrityError:
        return await run_in_threadpool(look_up, order.order_id)
    try:
        return await while_connected(request, future.aresult(REPLY_SECONDS))
    except ReplyTimeout:
        # The flow goes on. The client may ask later.
        response.status_code = 202
        return Receipt(order_id=order.order_id, is_confirmed=False)
    except FlowDied as error:
        raise HTTPException(500, f"order {order.order_id} needs an operator") from error


@web.get("/orders/{order_id}")
def look_up(order_id: str) -> Receipt:
    with Session(engine()) as session:
        sale = session.get(Sale, order_id)
    if sale is None:
        raise HTTPException(404, f"there is no order {order_id}")
    return Receipt(order_id=order_id, is_confirmed=sale.confirmations > 0)


def accept(order: Order) -> ReplyFuture[Receipt]:
    """Write the order and start its flow, both or neither. Raises ``IntegrityError`` for an order that exists."""
    with Session(engine()) as session, session.begin():
        session.add(Sale(order_id=order.order_id, amount=order.amount))
        session.flush()
        return shop.request(confirm, order, flow_id=f"order:{order.order_id}", session=session)


async def while_connected(request: Request, awaited: Coroutine[Any, Any, T]) -> T:
    """Await until the client is gone, because FastAPI itself goes on then. Raises ``asyncio.CancelledError``."""
    wait = asyncio.ensure_future(awaited)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not wait.done():
            wait.cancel()
    return await wait


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@cache
def engine() -> Engine:
    return create_engine(shop.database.replace("postgresql://", "postgresql+psycopg://", 1))


def make_tables() -> None:
    Base.metadata.create_all(engine())
