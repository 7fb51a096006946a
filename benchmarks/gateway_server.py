"""Serve one side of the gateway's benchmark: ``python -m benchmarks.gateway_server SIDE URL DESCRIPTOR``."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from stagepost import App, Context
from stagepost.gateway import Route, asgi
from stagepost.gateway.configuration import Configuration
from stagepost.gateway.server import run_server


@dataclass
class Order:
    account: str
    invoice: int
    amount: float


def gateway(url: str) -> Any:
    app = App("bench", database=url)

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        """Never run: the benchmark starts no worker."""

    return asgi(app, routes=[Route("orders", to="orders.place")], anonymous="bench")


def bare(url: str) -> Any:
    """Return an app that inserts each body and commits, and does nothing else."""
    insert = _insert_sqlite(url) if url.startswith("sqlite") else _insert_postgres(url)

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["method"] == "POST":
            insert(body)
        answer = b'{"status": "accepted"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return serve


def _insert_sqlite(url: str) -> Callable[[bytes], None]:
    path = url.removeprefix("sqlite:///")
    connection = sqlite3.connect(f"{path}.bare", isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB)")

    def insert(body: bytes) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bare (body) VALUES (?)", (body,))
        connection.execute("COMMIT")

    return insert


def _insert_postgres(url: str) -> Callable[[bytes], None]:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(
        "SELECT pg_advisory_lock(1); "
        "CREATE TABLE IF NOT EXISTS bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea); "
        "SELECT pg_advisory_unlock(1)"
    )

    def insert(body: bytes) -> None:
        # One statement in autocommit mode is one round trip, and the quickest durable insert.
        connection.execute("INSERT INTO bare (body) VALUES (%s)", (body,))

    return insert


def main(side: str, url: str, descriptor: str) -> None:
    app = gateway(url) if side == "gateway" else bare(url)
    asyncio.run(run_server(app, Configuration(), Path.cwd(), int(descriptor), asyncio.Event()))


if __name__ == "__main__":
    main(*sys.argv[1:])
