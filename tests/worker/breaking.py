"""A worker process with a defect of ours in it: the listener of a step raises.

python -m tests.worker.breaking URL MARKER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stagepost.app.app import engine_of
from stagepost.app.logs import configure
from stagepost.flow.claim import Claim
from stagepost.transaction.steps import Step
from stagepost.worker.child import Plan
from stagepost.worker.process import WorkerProcess
from tests.faults.bank import app


def break_at(step: Step, claim: Claim) -> None:
    if step is Step.AFTER_COMMIT:
        raise AssertionError("a defect")


def main(url: str, marker: str) -> None:
    configure("INFO", as_json=True)
    app.database = url
    engine_of(app).listener = break_at
    plan = Plan("tests.faults.bank:app", 2, drain=True, grace_seconds=1.0, supervisor=os.getppid())
    code = WorkerProcess(engine_of(app), plan).run()
    Path(marker).touch()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
