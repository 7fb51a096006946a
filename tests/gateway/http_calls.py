"""Requests over a real connection, for processes that may die in the middle of one."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.waiting import PATIENCE_SECONDS, wait_until


def post(port: int, path: str, content: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Post JSON. Return the status and the document; the status is 0 where the connection ended without an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        try:
            given = {"Content-Type": "application/json", **(headers or {})}
            connection.request("POST", path, json.dumps(content), given)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, None


def get(port: int, path: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, None


def wait_until_alive(port: int) -> None:
    wait_until(lambda: get(port, "/healthz")[0] == 200, f"a gateway answers on port {port}")


def listening_socket(port: int = 0) -> socket.socket:
    """Return a socket on that port, or on a free one. Connections wait in it for the process that accepts them."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", port))
    listening.listen(64)
    return listening
