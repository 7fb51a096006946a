"""The child that runs suspects, one at a time.

It reads the queue row to run, a JSON line each, and answers with a byte when it has begun and one when it is settled.
If it dies instead, its parent sees the end of the pipe.

    python -m stagepost.liveness.alone '<json>'
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.app.logs import configure
from stagepost.app.running import stage_transaction
from stagepost.app.settings import handed_down
from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.liveness.isolation import EXIT_STUCK, Answer, Plan
from stagepost.liveness.proof import incarnate
from stagepost.liveness.telling import log_outcome
from stagepost.liveness.vigil import Vigil
from stagepost.liveness.watch import ThreadWatch
from stagepost.transaction.callbacks import CallbackPool

EXIT_ORPHANED = 1

logger = logging.getLogger(__name__)


class SleepingPatience:
    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return True


def main(argument: str) -> None:
    plan = msgspec.convert(json.loads(argument), Plan)
    configure(plan.app.log_level, as_json=plan.app.log_json)
    app = load_app(plan.app.name, Path(plan.app.folder))
    app.place = handed_down()
    try:
        _run_each(app, plan)
    except (StoreContention, StoreUnavailable) as error:
        # It is not the message's failure: the parent tries again, with another child.
        logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
        _answer(plan, Answer.BROKEN)


def _run_each(app: App, plan: Plan) -> None:
    node = app.node("alone")
    access = app.access()
    # Its own proof of life, under which nothing is claimed: the claims are the parent's.
    incarnation = incarnate(app, node)
    watch = ThreadWatch(incarnation, 0, app.clock, access.work.interrupt)
    callbacks = CallbackPool()
    vigil = Vigil(
        incarnation,
        [watch],
        on_stuck=lambda _: os._exit(EXIT_STUCK),
        on_orphaned=lambda _: os._exit(EXIT_ORPHANED),
        parent=plan.parent,
    )
    vigil.start()
    transaction = stage_transaction(
        app, access, node=node, watch=watch, patience=SleepingPatience(), after_commit=callbacks
    )
    for line in sys.stdin.buffer:
        row = json.loads(line)["row"]
        try:
            for claim in access.transport.owned(plan.owner):
                if claim.row == row:
                    _answer(plan, Answer.BEGUN)
                    log_outcome(claim, transaction.run(claim))
        except (StoreContention, StoreUnavailable):
            raise
        except Exception:
            # No death, for the process lives.
            logger.exception("a suspect could not be run", extra={"event": "isolation-broken"})
            _answer(plan, Answer.UNSETTLED)
            return
        _answer(plan, Answer.SETTLED)
    callbacks.close()
    transaction.close()
    access.close()
    vigil.stop()
    incarnation.close()


def _answer(plan: Plan, answer: bytes) -> None:
    try:
        os.write(plan.answers, answer)
    except BrokenPipeError:
        # Its parent is gone; whoever takes over from it looks what became of the message.
        os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    main(sys.argv[1])
