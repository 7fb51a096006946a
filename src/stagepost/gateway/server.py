"""Serve a gateway with Hypercorn, the server that gives up on slow headers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

from hypercorn.asyncio import serve
from hypercorn.config import Config

from stagepost.flow.texts import one_line
from stagepost.gateway.application import Gateway
from stagepost.gateway.configuration import Configuration

# The time for all headers of a request, and for an idle connection.
HEADERS_SECONDS = 5.0
BACKLOG = 1_024
# A connection is closed when its client sends nothing for longer than any request may take.
BEYOND_REQUEST_SECONDS = 10

SERVER_LOGGER = "stagepost.gateway.server"


class OneLine(logging.Filter):
    """Turns each record of the server into one line with a code, without a stack or bytes of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text.partition(chr(10))[0]}: {type(error).__name__}: {error}"
        record.msg, record.args = one_line(text, 400), ()
        record.exc_info = record.exc_text = record.stack_info = None
        record.event = "gateway-server"
        return True


def server_settings(configuration: Configuration, folder: Path, descriptor: int) -> Config:
    """Return Hypercorn's settings for the socket of that file descriptor."""
    logger = logging.getLogger(SERVER_LOGGER)
    if not any(isinstance(each, OneLine) for each in logger.filters):
        logger.addFilter(OneLine())
    logger.setLevel(logging.WARNING)
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = logger
    config.include_server_header = False
    config.h11_max_incomplete_size = configuration.limits.header_bytes_max
    config.keep_alive_timeout = HEADERS_SECONDS
    config.read_timeout = int(configuration.limits.request_seconds) + BEYOND_REQUEST_SECONDS
    config.graceful_timeout = configuration.grace
    config.shutdown_timeout = configuration.grace
    config.alpn_protocols = ["http/1.1"]
    if configuration.certificate is not None and configuration.certificate_key is not None:
        config.certfile = str(folder / configuration.certificate)
        config.keyfile = str(folder / configuration.certificate_key)
    return config


async def run_server(gateway: Gateway, config: Config, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, and let the requests at work finish."""
    # Starlette and Hypercorn name the same dictionaries differently.
    await serve(cast(Any, gateway), config, shutdown_trigger=stop.wait, mode="asgi")
