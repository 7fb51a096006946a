"""A full disk under a SQLite store that a Spark job reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stagepost.flow.errors import StoreUnavailable
from stagepost.pipeline.failures import describe_error
from stagepost.pipeline.jobs.claim_loop import _unreachable
from stagepost.runtime.settings import Place
from stagepost.store.sqlite.store import SqliteStore
from tests.faults.disks import full, mounted


def test_a_full_disk_is_named_with_its_remedy_in_a_job(spark: SparkSession, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "3m", 100) as disk:
        path = disk / "shop.db"
        SqliteStore(path).session().close()
        frame = spark.read.format("stagepost").option("url", f"sqlite:///{path}").load()
        with full(disk), pytest.raises(PySparkException) as caught:
            frame.count()
    text = describe_error(caught.value)
    assert f"{path}: " in text
    assert text.endswith(", because its disk is full. Free some disk space.")


@pytest.mark.parametrize(("url", "advised"), [("sqlite:////data/shop.db", False), ("postgresql:///shop", True)])
def test_a_claim_loop_gives_advice_on_connections_for_a_server_alone(url: str, advised: bool) -> None:
    plan: Any = SimpleNamespace(place=Place(url, None))
    text = _unreachable(plan, StoreUnavailable("it is full. Free some disk space."))
    assert ("pg_hba.conf" in text, "space.." in text) == (advised, False)
