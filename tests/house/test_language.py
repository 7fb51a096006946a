"""The prose of the pages and of ``src/`` keeps to the design's page on language, as far as a test can see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.ids import ROOT
from tests.house.language import (
    Block,
    blocks_of_markdown,
    blocks_of_python,
    findings_in,
    fragments_in,
    judge,
    pages,
    sources,
)

JSON_RECORDS = "src/stagepost/pipeline/json_records.py"


def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def said(text: str) -> list[str]:
    return [found.text for block in blocks_of_markdown(text) for found in judge("page.md", block, 25)]


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in pages()])
def test_a_page_is_in_plain_language(page: str) -> None:
    assert not (found := findings_in(ROOT / page)), "\n".join(map(str, found))


def test_the_source_is_in_plain_language() -> None:
    found = [each for path in sources() for each in findings_in(path)]
    assert not found, "\n".join(map(str, found))


def test_a_foreign_text_before_another_sentence_ends_as_it_does_by_itself() -> None:
    """An error may end with a question mark or a full stop. ``as_sentence`` adds no second one."""
    ends_twice = re.compile(
        r"\{(\w+\()?(error|error\.strerror|error\.reply_text|reasons|cause|self\._lost)\)?\}\.[ \"]"
    )
    # These errors are Stagepost's own, and parts of a sentence.
    own = {"src/stagepost/transaction/editing.py", "src/stagepost/recovery/editing.py", JSON_RECORDS}
    found = [str(path.relative_to(ROOT)) for path in sources() if ends_twice.search(path.read_text())]
    assert set(found) == own


def test_a_banned_opening_is_found_at_every_place_where_a_sentence_begins() -> None:
    for text in (
        "What is sent is kept.",
        "It waits. Nobody knows.",
        "It waits; who asks gets nothing.",
        "* **Whoever** dies.",
        "| case | what it does |\n| --- | --- |\n| a case | nobody acts |",
        "# What it costs",
        "A line,\n\nwho reads it",
    ):
        assert any("begins" in each for each in said(text)), text
    assert said("What does it cost? The reader says what it costs.") == []


def test_a_long_sentence_is_found_and_code_and_addresses_do_not_lengthen_it() -> None:
    assert said("Word " * 25 + ".") == []
    assert any("26 words" in each for each in said("Word " * 26 + "."))
    code = "`" + "word " * 30 + "`"
    assert said(f"A sentence with {code} and [a link](page.md) in it.") == []
    assert said("```\n" + "word " * 30 + "\n```") == []
    assert said("One two e.g. three. " * 20) == []


def test_a_banned_phrase_is_found_across_lines_and_names_its_replacement() -> None:
    block = Block(7, "All of it goes,\nbut\nfor the rest.")
    (found,) = judge("page.md", block, None)
    assert (found.line, found.text, found.replacement) == (8, "'but for'", "except for")


def test_docstrings_comments_and_texts_of_strings_are_read_and_statements_of_sql_are_not(tmp_path: Path) -> None:
    source = '''
"""What it is.

Who reads it.
"""
# Nobody
# reads this.
raise ValueError(f"whoever {1} does this")
SQL = "SELECT what FROM whoever"
NAME = "likewise"
'''
    blocks = [block for block in blocks_of_python(source, nodes(source)) for _ in judge("file.py", block, None)]
    assert sorted(block.line for block in blocks) == [2, 4, 6, 8, 8]


def test_a_docstring_that_is_a_fragment_is_found() -> None:
    source = 'def a():\n    """Whether it waits."""\n\n\ndef b():\n    """Return whether it waits."""\n'
    assert [found.line for found in fragments_in("file.py", nodes(source))] == [2]
