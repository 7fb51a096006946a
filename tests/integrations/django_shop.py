"""Django with one model, on the database of whichever app a test has made."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

from stagepost import App
from tests.integrations.models import url_of

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ""}}, USE_TZ=True, TIME_ZONE="UTC"
    )
    django.setup()

from django.db import connections, models


class Sale(models.Model):  # type: ignore[misc]  # Django has no types
    order_id = models.TextField()
    amount = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    is_paid = models.BooleanField(default=False)
    details = models.JSONField(default=dict)
    made_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "shop"
        db_table = "sale"


class Line(models.Model):  # type: ignore[misc]  # Django has no types
    sale = models.ForeignKey(Sale, models.CASCADE)
    item = models.TextField(unique=True)

    class Meta:
        app_label = "shop"
        db_table = "line"


def databases(url: str) -> dict[str, Any]:
    """Django's settings for a URL of Stagepost's."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }


def settings_of_django() -> dict[str, Any]:
    settings_by_alias: dict[str, Any] = connections.settings
    return settings_by_alias


def use(url: str) -> None:
    """Point Django to a database, in this thread."""
    connections["default"].close()
    connections.settings["default"] = connections.configure_settings({"default": databases(url)})["default"]
    del connections["default"]


def make_tables(app: App) -> None:
    use(url_of(app))
    with connections["default"].schema_editor() as editor:
        editor.create_model(Sale)
        editor.create_model(Line)
