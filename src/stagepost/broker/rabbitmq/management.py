"""RabbitMQ's management API: the policies and the consumers of a queue, which AMQP does not tell."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

SECONDS_MAX = 5.0
MISSING = 404

# Returns the answer to a path below ``/api/``; None where there is no such thing.
Ask = Callable[[str], Any]


def api_at(url: str, user: str, password: str, tls: ssl.SSLContext | None) -> Ask:
    """Return a function that asks the API at ``url``, http or https. It raises ``OSError`` and ``ValueError``."""
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(path: str) -> Any:
        request = Request(f"{url.rstrip('/')}/api/{path}", headers={"Authorization": f"Basic {credentials}"})  # noqa: S310 - the driver has checked that it is http or https
        try:
            with urlopen(request, timeout=SECONDS_MAX, context=tls) as answer:  # noqa: S310 - as above
                return json.load(answer)
        except HTTPError as error:
            if error.code == MISSING:
                return None
            raise

    return ask


def path_of(kind: str, *names: str) -> str:
    return "/".join([kind, *(quote(each, safe="") for each in names)])
