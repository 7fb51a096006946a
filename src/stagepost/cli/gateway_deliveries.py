"""The entry of the process of ``stagepost gateway`` that supervises the workers of its deliveries."""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.cli.children import CANNOT_START
from stagepost.flow.errors import StagepostError
from stagepost.runtime.assembly import check_databases
from stagepost.runtime.declarations import declare_stages
from stagepost.runtime.settings import handed_down
from stagepost.worker import child
from stagepost.worker.supervisor import Supervisor

# The worker processes find the deliveries there, too.
DELIVERIES = "stagepost.gateway.configured:deliveries"
# Each route has threads of its own, so no thread is left for shared ones.
SHARED_THREADS = 1

logger = logging.getLogger(__name__)


class Plan(msgspec.Struct):
    """The instructions. ``parent`` is the process whose death ends this one."""

    parent: int
    processes: int
    grace: float
    log_level: str
    log_json: bool


def main(argument: str) -> int:
    plan = msgspec.json.decode(argument, type=Plan)
    configure(plan.log_level, as_json=plan.log_json)
    try:
        engine = engine_of(load_app(DELIVERIES))
        engine.databases.place = handed_down()
        check_databases(engine)
        declare_stages(engine)
        orders = child.Plan(
            app=DELIVERIES,
            threads=SHARED_THREADS,
            drain=False,
            grace_seconds=plan.grace,
            supervisor=os.getpid(),
            log_level=plan.log_level,
            log_json=plan.log_json,
        )
        return Supervisor(engine, orders, plan.processes, plan.parent).run()
    except StagepostError as error:
        logger.critical("delivery process cannot start: %s", error, extra={"event": "cannot-start"})
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
