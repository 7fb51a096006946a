"""What a user imports, and sees in tracebacks and dead letters, is one and the same name."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import UTC, datetime

import pytest

import stagepost
from stagepost.flow import errors
from stagepost.flow.clock import SystemClock, microseconds, to_datetime


@pytest.mark.parametrize("name", stagepost.__all__)
def test_everything_public_is_named_after_the_package(name: str) -> None:
    assert getattr(stagepost, name).__module__ == "stagepost"
    assert getattr(stagepost, name).__qualname__ == name


def test_every_error_is_one_of_stageposts_is_public_and_has_a_code_of_its_own() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]
    found = [each for each in classes if issubclass(each, stagepost.StagepostError)]
    assert found == classes
    assert {each.__name__ for each in found} <= set(stagepost.__all__)
    assert len({each.code for each in found}) == len(found)


def test_importing_stagepost_brings_neither_spark_nor_a_command_line() -> None:
    script = (
        "import sys, stagepost; print(sorted({'pyspark', 'pyarrow', 'pandas', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_moment_is_exact_to_the_microsecond() -> None:
    assert to_datetime(1_700_000_000_123_457) == datetime(2023, 11, 14, 22, 13, 20, 123457, UTC)
    assert to_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert microseconds(0.25) == 250_000
    assert to_datetime(SystemClock().now()).year >= 2024
