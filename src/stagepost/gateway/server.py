"""Serve a gateway with Hypercorn, the server that gives up on slow headers."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from pathlib import Path
from typing import Any, cast

from hypercorn.asyncio.lifespan import Lifespan
from hypercorn.config import Config
from hypercorn.typing import LifespanState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import one_line
from stagepost.gateway.configuration import Configuration
from stagepost.gateway.connections import Connections

# The time for all headers of a request, for a TLS handshake, and for an idle connection.
HEADERS_SECONDS = 5.0
# Files of the database, of the log, and of Python.
FILES_BESIDE_CONNECTIONS = 128
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


def server_settings(configuration: Configuration, folder: Path) -> Config:
    """Return Hypercorn's settings. The files of a certificate count from ``folder``."""
    logger = logging.getLogger(SERVER_LOGGER)
    if not any(isinstance(each, OneLine) for each in logger.filters):
        logger.addFilter(OneLine())
    logger.setLevel(logging.WARNING)
    config = Config()
    config.accesslog = None
    config.errorlog = logger
    config.include_server_header = False
    config.h11_max_incomplete_size = configuration.limits.header_bytes_max
    config.keep_alive_timeout = HEADERS_SECONDS
    config.ssl_handshake_timeout = HEADERS_SECONDS
    config.read_timeout = int(configuration.limits.request_seconds) + BEYOND_REQUEST_SECONDS
    config.shutdown_timeout = configuration.grace
    config.alpn_protocols = ["http/1.1"]
    if configuration.certificate is not None and configuration.certificate_key is not None:
        config.certfile = str(folder / configuration.certificate)
        config.keyfile = str(folder / configuration.certificate_key)
    return config


async def run_server(
    app: ASGIApp, configuration: Configuration, folder: Path, descriptor: int, stop: asyncio.Event
) -> None:
    """Serve the connections of that listening socket until ``stop`` is set, and let the requests at work finish."""
    limits = configuration.limits
    allow_files(limits.connections + FILES_BESIDE_CONNECTIONS)
    config, loop = server_settings(configuration, folder), asyncio.get_running_loop()
    # Starlette and Hypercorn name the same dictionaries differently.
    wrapped = wrap_app(cast(Any, app), config.wsgi_max_body_size, "asgi")
    state: LifespanState = {}
    lifespan = Lifespan(wrapped, config, loop, state)
    living = loop.create_task(lifespan.handle_lifespan())
    await lifespan.wait_for_startup()
    with socket.socket(fileno=descriptor) as listening:
        connections = Connections(wrapped, config, state, limits.connections, limits.body_seconds)
        accepting, stopping = loop.create_task(connections.accept(listening)), loop.create_task(stop.wait())
        await asyncio.wait([accepting, stopping], return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        stopping.cancel()
        defect, _ = await asyncio.gather(accepting, stopping, return_exceptions=True)
    await connections.finish(configuration.grace)
    await lifespan.wait_for_shutdown()
    living.cancel()
    if isinstance(defect, Exception):
        raise defect


def allow_files(count: int) -> None:
    """Let this process open ``count`` files. Raises ``DeclarationError`` where the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise DeclarationError(
            f"the limit connections needs {count} open files, and a process may open {hard} here. Lower connections, "
            "or raise the limit of the system: ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
