"""The entry of one HTTP process of ``stagepost gateway``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from stagepost.app.app import engine_of
from stagepost.app.logs import configure
from stagepost.cli.children import CANNOT_START
from stagepost.flow.errors import StagepostError
from stagepost.gateway.configuration import app_of, gateway_of, read_configuration
from stagepost.gateway.server import run_server
from stagepost.runtime.settings import handed_down

LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Plan(msgspec.Struct):
    """The instructions for one process.

    ``path``        the configuration's
    ``descriptor``  the listening socket's
    ``parent``      the process whose death ends this one
    """

    path: str
    descriptor: int
    parent: int
    log_level: str
    log_json: bool


async def _run(plan: Plan) -> None:
    path = Path(plan.path)
    configuration = read_configuration(path)
    app = app_of(configuration, path.parent)
    engine_of(app).databases.place = handed_down()
    gateway = gateway_of(configuration, app, path.parent)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = loop.create_task(run_server(gateway, configuration, path.parent, plan.descriptor, stop))
    while not (await asyncio.wait([serving], timeout=LOOK_SECONDS))[0]:
        if os.getppid() != plan.parent:
            stop.set()
    await serving
    app.close()


def main(argument: str) -> int:
    plan = msgspec.json.decode(argument, type=Plan)
    configure(plan.log_level, as_json=plan.log_json)
    try:
        asyncio.run(_run(plan))
    except StagepostError as error:
        logger.critical("HTTP process cannot start: %s", error, extra={"event": "cannot-start"})
        return CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
