"""Serve an ASGI application in this process."""

from __future__ import annotations

import asyncio
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config


def run(application: Any, port: int) -> None:
    """Serve at ``127.0.0.1`` until the process is told to stop."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(application, config))
