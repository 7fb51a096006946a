"""What a user imports, and sees in tracebacks and dead letters, is one and the same name."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import UTC, datetime

import pytest

import stagepost
from stagepost import public
from stagepost.flow import errors
from stagepost.flow.clock import SystemClock, microseconds, to_datetime


@pytest.mark.parametrize("name", public.__all__)
def test_everything_public_is_named_after_the_package(name: str) -> None:
    assert getattr(stagepost, name).__module__ == "stagepost"
    assert getattr(stagepost, name).__qualname__ == name


def test_every_error_is_one_of_stageposts_is_public_and_has_a_code_of_its_own() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]
    found = [each for each in classes if issubclass(each, stagepost.StagepostError)]
    assert found == classes
    assert {each.__name__ for each in found} <= set(public.__all__)
    assert len({each.code for each in found}) == len(found)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'stagepost' has no attribute 'Nothing'"):
        getattr(stagepost, "Nothing")  # noqa: B009 - a type checker refuses the attribute
    assert not hasattr(stagepost, "__path_of_nothing__")
    assert set(dir(stagepost)) == {*public.__all__, "__version__"}


def test_spark_reads_a_store_without_importing_an_app() -> None:
    script = "import sys, pyspark_stagepost; print('stagepost.app' in sys.modules, pyspark_stagepost.DefaultSource)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")


def test_an_error_has_its_public_name_in_a_process_that_needs_no_other_public_name() -> None:
    script = "import sys; from stagepost.flow.errors import Refuse; print(Refuse, 'stagepost.public' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "<class 'stagepost.Refuse'> False\n"


def test_importing_stagepost_brings_neither_spark_nor_a_command_line() -> None:
    unwanted = {"pyspark", "pyarrow", "pandas", "click", "rich"}
    script = f"import sys; from stagepost import App; print(sorted({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_moment_is_exact_to_the_microsecond() -> None:
    assert to_datetime(1_700_000_000_123_457) == datetime(2023, 11, 14, 22, 13, 20, 123457, UTC)
    assert to_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert microseconds(0.25) == 250_000
    assert to_datetime(SystemClock().now()).year >= 2024
