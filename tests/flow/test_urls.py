"""No password is ever shown, however its URL is written."""

from __future__ import annotations

import pytest

from stagepost.flow.urls import shown_url

SECRET = "geheim"

SHOWN = {
    "sqlite:///payments.db": "sqlite:///payments.db",
    "sqlite:////var/a@b:c/payments.db": "sqlite:////var/a@b:c/payments.db",
    "memory:": "memory:",
    "payments.db": "payments.db",
    "postgresql://db/shop": "postgresql://db/shop",
    "postgresql://ada@db:5432/shop": "postgresql://ada@db:5432/shop",
    "postgresql://ada:geheim@db:5432/shop": "postgresql://ada@db:5432/shop",
    "postgresql://ada:ge/heim@db/shop": "postgresql://ada@db/shop",
    "postgresql://ada:geheim/geheim?geheim#geheim@db/shop": "postgresql://ada@db/shop",
    "postgresql://ada:geheim@geheim@db/shop": "postgresql://ada@db/shop",
    "postgresql://ada:geheim:geheim@db/shop": "postgresql://ada@db/shop",
    "postgresql://db/shop?password=geheim": "postgresql://db/shop",
    "postgresql://db/shop?user=ada&password=geheim&host=/run": "postgresql://db/shop",
    "postgresql+psycopg://ada:geheim@db/shop?password=geheim": "postgresql+psycopg://ada@db/shop",
    "postgresql://ada:geheim/shop": "postgresql://…/shop",
    "postgresql://[::1]:5432,db:5433/shop": "postgresql://[::1]:5432,db:5433/shop",
    "amqp://ada:geheim@broker:5672/%2F": "amqp://ada@broker:5672/%2F",
    "host=db password=geheim": "…",
    "ada:geheim@db": "…",
    "postgresql://ada:geheim@db/sh\x1b[31mop\n": "postgresql://ada@db/sh\\x1b[31mop\\n",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert SECRET not in shown_url(url)
