"""The snippet and the commands of docs/retention.md run, and the store keeps what they declare."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from stagepost.cli.main import main
from stagepost.store.sqlite.store import SqliteStore
from stagepost.transaction.retention import read_rules
from tests.places import bare_environment

PAGE = (Path(__file__).parents[2] / "docs" / "retention.md").read_text()
DAY = 24

PROOF = """
from stagepost.app.app import engine_of
from stagepost.runtime.declarations import declare_stages
from stagepost.testing import Harness
declare_stages(engine_of(app))
app.start(place, Order("29401"), flow_id="order:29401")
print(*(type(each).__name__ for each in Harness(app).drain()))
"""


def test_the_snippet_declares_retentions_and_the_commands_purge(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # Annotations are read where they are declared, so the snippet is a module.
    (tmp_path / "page.py").write_text(snippet + PROOF)
    words = [sys.executable, "page.py"]
    ended = subprocess.run(words, cwd=tmp_path, env=bare_environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "Completed\n"), ended.stderr
    path = tmp_path / "stagepost.db"
    with closing(SqliteStore(path).session()) as session:
        rules = read_rules(session)
    assert (rules.of_scope("orders.place"), rules.of_kind("initiations")) == (60 * DAY, 90 * DAY)
    commands = re.findall(r"^stagepost (purge[^#\n]*)", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for each in commands:
        done = CliRunner().invoke(main, [*each.split(), "--database", f"sqlite:///{path}"])
        assert (done.exit_code, "nothing is old enough to go" in done.stdout) == (0, True), done.output
