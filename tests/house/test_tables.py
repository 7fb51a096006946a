"""Each table of a store has a rule in docs/retention.md, and a line in ``stagepost status``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from stagepost.observe.retention import EFFECTS_UNTIL, UNTIL, WHAT, read_retention
from stagepost.runtime.databases import open_store
from stagepost.store.sql.retention import COUNTED
from stagepost.transaction.retention import Rules

HOUSE = Path(__file__).parents[2]
STORES = HOUSE / "src/stagepost/store"
MADE = re.compile(r"^CREATE TABLE stagepost_(\w+)\b(?! PARTITION)", re.MULTILINE)
# Lines that say of a database how many rows wait, and the lines of each scope and stage.
OF_THEIR_OWN = {"the stages", "started and not in the queue yet", "the workers", "the store's URL", "each line"}
OF_EACH = {"ids of …", "inbox of …", "business keys of …"}


def made() -> set[str]:
    files = [*STORES.glob("*/migrations/*.sql"), *STORES.glob("*/apart/*.sql")]
    return {name for each in files for name in MADE.findall(each.read_text())}


def ruled() -> Iterator[tuple[str, str]]:
    text = (HOUSE / "docs/retention.md").read_text()
    for row in text.partition("## Every table of a store")[2].partition("\n## ")[0].splitlines():
        if row.startswith("| `"):
            tables, line, rule = (each.strip() for each in row.strip("|").split("|"))
            assert rule, row
            for name in re.findall(r"`(\w+)`", tables):
                yield name, line


def test_each_table_has_a_rule_and_each_rule_a_table() -> None:
    assert {name for name, _ in ruled()} == made()


def test_each_rule_has_its_line_in_status(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/store.db").session()) as session:
        shown = {each.what for each in read_retention(session, Rules(), is_queue=True)}
    assert shown == {*WHAT.values(), *UNTIL} - {"decisions"}
    # Only PostgreSQL has decisions.
    assert set(UNTIL) == {*COUNTED, "decisions"}
    assert EFFECTS_UNTIL
    assert {line for _, line in ruled()} == {*WHAT.values(), *UNTIL, "effects"} | OF_THEIR_OWN | OF_EACH
