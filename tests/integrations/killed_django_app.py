"""As ``killed_app``, with Django's ORM: its worker dies once, at the point that KILL_AT names."""

from __future__ import annotations

import os
from typing import Any

from stagepost import App, Context
from stagepost.integrations.django import DjangoSessions
from tests.integrations.django_shop import Line, Sale, databases, settings_of_django
from tests.integrations.killed_app import listen, reach
from tests.integrations.models import Order

settings_of_django()["default"].update(databases(os.environ["STAGEPOST_DATABASE"]))

app = App("killed", listener=listen, sessions=DjangoSessions())


@app.endpoint("count")
def count(ctx: Context, order: Order) -> None:
    Sale.objects.create(order_id=f"counted {order.id}")


@app.endpoint("pay")
def pay(ctx: Context, order: Order) -> None:
    def watch(execute: Any, *statement: Any) -> Any:
        done = execute(*statement)
        reach("after_flush")
        return done

    with ctx.session.execute_wrapper(watch):
        sale = Sale.objects.create(order_id=order.id)
        Line.objects.create(sale=sale, item=ctx.message_id)
    ctx.send(count, order)
