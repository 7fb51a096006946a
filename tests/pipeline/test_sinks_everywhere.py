"""Sinks and scopes are told the same around each envelope, by a worker, by a task of Spark, and in the direct modes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import App, Target
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.process import process
from stagepost.runtime.settings import Place
from stagepost.transaction.stage import Mode
from tests.edges.direct_service import DirectService, Order, broker_named
from tests.places import bare_environment
from tests.processes import ROOT
from tests.transaction.recorded_shop import (
    FAILED,
    REDELIVERY,
    WELL,
    Record,
    Tills,
    declare_sinks,
    handle,
)

SCRIPT = Path(sys.executable).with_name("stagepost")
MODULE = "from tests.transaction.recorded_shop import make_app\napp = make_app({folder!r})\n"


def run_directly(folder: Path, mode: Mode) -> None:
    record = Record(folder / "record")
    broker = broker_named(f"memory:{folder.name}", is_atomic=False)
    service = DirectService(
        f"sqlite:///{folder}/shop.db",
        broker,
        mode,
        handle,
        lambda app: declare_sinks(app, record),
        scopes=Tills(record.note),
        redelivery=REDELIVERY,
    )
    with closing(service):
        service.arrive("good", "bad")
        service.finish()


def run_stored(request: pytest.FixtureRequest, folder: Path, way: str) -> None:
    name = f"recorded_by_{way}"
    (folder / f"{name}.py").write_text(MODULE.format(folder=str(folder)))
    url = f"sqlite:///{folder}/shop.db"
    app = App("recorded", database=url)
    pay: Target[Order, None] = app.remote("shop.pay", Order)
    for each in ("good", "bad"):
        app.start(pay, Order(each), flow_id=f"flow-{each}")
    app.close()
    if way == "spark":
        spark = request.getfixturevalue("spark")
        process(spark, ProcessingPlan(f"{name}:app", str(folder), Place(url, None), "CRITICAL"))
        return
    environment = bare_environment() | {"STAGEPOST_DATABASE": url, "PYTHONPATH": f"{ROOT}:{folder}"}
    subprocess.run([str(SCRIPT), "worker", f"{name}:app", "--drain"], cwd=folder, env=environment, check=True)


@pytest.mark.parametrize("way", ["worker", "best_effort", "transport", pytest.param("spark", marks=pytest.mark.more)])
def test_sinks_and_scopes_run_alike_on_worker_spark_and_direct_modes(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    match way:
        case "best_effort" | "transport":
            run_directly(tmp_path, way)
        case _:
            run_stored(request, tmp_path, way)
    record = Record(tmp_path / "record")
    assert record.of("flow-good") == WELL
    assert record.of("flow-bad") == (*FAILED, *WELL)
