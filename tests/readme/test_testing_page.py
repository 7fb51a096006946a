"""The project of ``docs/testing.md`` is written down and tested, and its verdicts are those of the example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.crashes.app import MISTAKES, crashes_of
from tests.places import bare_environment
from tests.readme.test_readme import is_said

PAGE = Path(__file__).parents[2] / "docs/testing.md"
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def test_the_tests_of_the_page_pass_in_a_project_of_their_own(tmp_path: Path) -> None:
    files = FILE.findall(PAGE.read_text())
    for name, text in files:
        (tmp_path / name).write_text(text)
    # In another order too, which the page says is allowed.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--stagepost-seed=random"]
    environment = bare_environment() | {"STAGEPOST_QUEUE": "postgresql://production.invalid/shop"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert "stagepost: messages run in the order of --stagepost-seed=" in done.stdout


@pytest.mark.parametrize(("careless", "cured"), MISTAKES.items(), ids=MISTAKES)
def test_a_careless_stage_is_caught_with_its_cause_and_its_cure_is_not(careless: str, cured: str) -> None:
    found = re.search(r"<!-- verdicts -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    for stage in (careless, cured):
        crashes = crashes_of(stage)
        wrong = [each for each in crashes if not each.is_exactly_once]
        place = lines.index(f"{stage}: {len(wrong)} of {len(crashes)} crashes change its effects")
        assert bool(wrong) == (stage == careless)
        assert not wrong or is_said(lines[place + 1], str(wrong[0]))
