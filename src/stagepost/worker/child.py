"""The start of each process that the supervisor runs: its orders, its exit codes, its signals."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, Protocol

import msgspec

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.flow.errors import StagepostError, StoreContention, StoreUnavailable
from stagepost.liveness.detector import PAUSED_AFTER_SECONDS
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import handed_down
from stagepost.transaction.database_wait import DATABASE_UNAVAILABLE

EXIT_DONE = 0
EXIT_ABANDONED = 1
# The codes from here on begin with those of sysexits.h.
EXIT_UNAVAILABLE = 69
EXIT_BROKEN = 70
EXIT_STUCK = 75
# Only messages at paused stages are left.
EXIT_STALLED = 76
# No message is left. EXIT_DONE would not do, because a handler may exit with it.
EXIT_DRAINED = 77
EXIT_CANNOT_START = 78

logger = logging.getLogger(__name__)


class Plan(msgspec.Struct, frozen=True):
    """The supervisor's orders for one process."""

    app: str
    threads: int
    drain: bool
    grace_seconds: float
    supervisor: int
    log_level: str = "WARNING"
    log_json: bool = False
    paused_after_seconds: float = PAUSED_AFTER_SECONDS


class Child(Protocol):
    def run(self) -> int:
        """Run to the end, and return the exit code."""

    def stop(self) -> None:
        """Stop in good order. Called again, exit at once. A signal handler calls it."""


def run_child(name: str, make: Callable[[Engine, Plan], Child]) -> NoReturn:
    """Run the process that ``make`` makes from the plan, which is the first argument, and exit with its code."""
    code = _code_of(name, make, msgspec.convert(json.loads(sys.argv[1]), Plan))
    sys.stdout.flush()
    sys.stderr.flush()
    # sys.exit would wait for threads that do not end.
    os._exit(code)


def log_not_started(name: str, error: Exception) -> None:
    """Log that the database is unavailable. The supervisor then starts another process."""
    logger.warning("%s cannot start yet: %s", name, error, extra={"event": DATABASE_UNAVAILABLE})


def _code_of(name: str, make: Callable[[Engine, Plan], Child], plan: Plan) -> int:
    configure(plan.log_level, as_json=plan.log_json)
    child: Child | None = None

    def stop(signal_number: int, frame: FrameType | None) -> None:
        if child is None:
            # The app is still being imported, and nothing has begun.
            os._exit(EXIT_DONE)
        child.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        engine = engine_of(load_app(plan.app))
        engine.databases.place = handed_down()
        child = make(engine, plan)
    except (StoreContention, StoreUnavailable) as error:
        log_not_started(name, error)
        return EXIT_UNAVAILABLE
    except StagepostError as error:
        logger.critical("%s cannot start: %s", name, error, extra={"event": "cannot-start"})
        return EXIT_CANNOT_START
    return child.run()
