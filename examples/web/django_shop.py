"""The shop of ``fastapi_shop`` on Django, in one file. A view writes its order and starts its flow in one atomic block.

A service of yours has its settings, models and views in the places that Django gives them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import django
from asgiref.sync import sync_to_async
from django.conf import settings

from stagepost import App, Context, FlowDied, ReplyFuture, ReplyTimeout

URL = os.environ.get("STAGEPOST_DATABASE", "sqlite:///shop.db")
REPLY_SECONDS = float(os.environ.get("REPLY_SECONDS", "5"))


def database(url: str) -> dict[str, Any]:
    """Return Django's settings for the database of a URL."""
    if url.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
    }


settings.configure(
    DATABASES={"default": database(URL)},
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    USE_TZ=True,
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402 - what follows needs the settings
from django.db import IntegrityError, connection, models, transaction  # noqa: E402
from django.db.models import F  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

from stagepost.integrations.django import DjangoSessions  # noqa: E402

shop = App("django-shop", database=URL, sessions=DjangoSessions())


class Sale(models.Model):  # type: ignore[misc]  # Django has no types
    order_id = models.TextField(primary_key=True)
    amount = models.IntegerField()
    confirmations = models.IntegerField(default=0)

    class Meta:
        app_label = "web"
        db_table = "sale"


@dataclass
class Order:
    order_id: str
    amount: int


@dataclass
class Receipt:
    order_id: str


@shop.endpoint("orders.confirm")
def confirm(ctx: Context, order: Order) -> Receipt:
    Sale.objects.filter(order_id=order.order_id).update(confirmations=F("confirmations") + 1)
    return Receipt(order.order_id)


async def place(request: HttpRequest) -> JsonResponse:
    """Accept an order, and wait for its confirmation. Django cancels the view when its client is gone."""
    body = json.loads(request.body)
    order = Order(str(body["order_id"]), int(body["amount"]))
    try:
        future = await sync_to_async(accept)(order)
    except IntegrityError:
        return await look_up(request, order.order_id)
    try:
        await future.aresult(REPLY_SECONDS)
    except ReplyTimeout:
        # The flow goes on. The client may ask later.
        return JsonResponse({"order_id": order.order_id, "is_confirmed": False}, status=202)
    except FlowDied:
        return JsonResponse({"detail": f"order {order.order_id} needs an operator"}, status=500)
    return JsonResponse({"order_id": order.order_id, "is_confirmed": True})


async def look_up(request: HttpRequest, order_id: str) -> JsonResponse:
    sale = await Sale.objects.filter(order_id=order_id).afirst()
    if sale is None:
        return JsonResponse({"detail": f"there is no order {order_id}"}, status=404)
    return JsonResponse({"order_id": order_id, "is_confirmed": sale.confirmations > 0})


def accept(order: Order) -> ReplyFuture[Receipt]:
    """Write the order and start its flow, both or neither. Raises ``IntegrityError`` for an order that exists."""
    with transaction.atomic():
        Sale.objects.create(order_id=order.order_id, amount=order.amount)
        return shop.request(confirm, order, flow_id=f"order:{order.order_id}", session=connection)


def make_tables() -> None:
    if "sale" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Sale)


urlpatterns = [path("orders", place), path("orders/<str:order_id>", look_up)]
web = get_asgi_application()
