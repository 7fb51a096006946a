from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from stagepost.flow.ids import RandomIds
from stagepost.liveness.incarnation import registration
from stagepost.store.sqlite.lock_file import LockFile, LockFolder
from stagepost.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> RandomIds:
    return RandomIds(clock, Random(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bank.db-workers"


@pytest.fixture
def incarnation(folder: Path, ids: RandomIds, clock: ManualClock) -> LockFile:
    """Left to the end of the process: a lock file is dropped with its folder."""
    return LockFolder(folder, clock).enter(registration("bank", "worker@here:1", ids, clock, slots=3))
