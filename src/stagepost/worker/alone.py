"""The child that runs suspects, one at a time.

It reads queue rows, one JSON line each. It answers with one byte when the row's message has begun and one when it is
settled. If it dies instead, its parent sees the end of the pipe.

    python -m stagepost.worker.alone '<json>'
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import msgspec

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.flow.ids import node_name
from stagepost.runtime.assembly import attempt_runner
from stagepost.runtime.engine import Engine
from stagepost.runtime.isolation import EXIT_STUCK, PAUSE, Answer, Plan
from stagepost.runtime.service import NeverStops
from stagepost.runtime.settings import handed_down
from stagepost.runtime.watchdog import ThreadWatch, Watchdog
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import log_unavailable
from stagepost.transaction.outcome_log import log_outcome

EXIT_ORPHANED = 1

logger = logging.getLogger(__name__)


def main(argument: str) -> None:
    plan = msgspec.convert(json.loads(argument), Plan)
    configure(plan.app.log_level, as_json=plan.app.log_json)
    sys.path += [each for each in plan.app.path if each not in sys.path]
    engine = engine_of(load_app(plan.app.name, Path(plan.app.folder)))
    engine.databases.place = handed_down()
    try:
        _run_each(engine, plan)
    except (StoreContention, StoreUnavailable) as error:
        # It is not the message's failure: the parent tries again, with another child.
        log_unavailable(logger, error, PAUSE / SECOND)
        _answer(plan, Answer.BROKEN)


def _run_each(engine: Engine, plan: Plan) -> None:
    node = node_name("alone")
    access = engine.access()
    # The claims are the parent's: nothing is claimed under this incarnation.
    incarnation = engine.incarnate(node)
    watch = ThreadWatch(incarnation, 0, engine.clock, access.work.interrupt)
    callbacks = CallbackPool()
    watchdog = Watchdog(
        incarnation,
        [watch],
        on_stuck=lambda _: os._exit(EXIT_STUCK),
        on_orphaned=lambda _: os._exit(EXIT_ORPHANED),
        parent=plan.parent,
    )
    watchdog.start()
    transaction = attempt_runner(engine, access, node=node, monitor=watch, stop=NeverStops(), after_commit=callbacks)
    for line in sys.stdin.buffer:
        row = json.loads(line)["row"]
        try:
            for claim in access.session.queue.owned(plan.owner):
                if claim.row == row:
                    _answer(plan, Answer.BEGUN)
                    log_outcome(claim, transaction.run(claim))
        except (StoreContention, StoreUnavailable):
            raise
        except Exception:
            # This is no death: the process lives.
            logger.exception("a suspect could not be run", extra={"event": "isolation-broken"})
            _answer(plan, Answer.UNSETTLED)
            return
        _answer(plan, Answer.SETTLED)
    callbacks.close()
    transaction.close()
    access.close()
    watchdog.close()


def _answer(plan: Plan, answer: bytes) -> None:
    try:
        os.write(plan.answers, answer)
    except BrokenPipeError:
        # The parent is gone. The process that takes over finds out what became of the message.
        os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    main(sys.argv[1])
