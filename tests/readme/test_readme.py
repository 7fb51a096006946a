"""The README, as a newcomer types it: its file is written, its commands are run, its outputs are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.places import bare_environment

README = Path(__file__).parents[2] / "README.md"


def the_file() -> tuple[str, str]:
    """The quickstart's only file: its name and its text."""
    found = re.search(r"<!-- file: (\S+) -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1], found[2]


def the_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that it is said to print."""
    found = re.search(r"<!-- run -->\n```console\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    for part in found[1].split("$ ")[1:]:
        command, *lines = part.splitlines()
        yield command, [line for line in lines if line.strip()]


def is_said(expected: str, printed: str) -> bool:
    """An ellipsis stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in expected.split("…"))
    return re.fullmatch(rf"\s*{pattern}\s*", printed) is not None


def test_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    name, text = the_file()
    (tmp_path / name).write_text(text)
    here = bare_environment()
    here["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{here['PATH']}"
    for command, expected in the_commands():
        done = subprocess.run(
            command.split(),
            cwd=tmp_path,
            env=here,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        printed = iter(done.stdout.splitlines())
        for line in expected:
            assert any(is_said(line, each) for each in printed), f"{command} does not print {line!r}:\n{done.stdout}"


def test_the_quickstart_is_short() -> None:
    _, text = the_file()
    declared, _ = text.split('if __name__ == "__main__":')
    assert len([line for line in declared.splitlines() if line.strip()]) <= 40


def test_every_link_of_the_documents_leads_somewhere() -> None:
    root = README.parent
    for document in (*root.glob("*.md"), *root.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(root)} links to {target}"


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_to_a_section_finds_its_heading() -> None:
    root = README.parent
    for document in (*root.glob("*.md"), *root.glob("docs/**/*.md")):
        for target, anchor in re.findall(r"\]\(([^)#: ]*)#([^)]+)\)", document.read_text()):
            page = document.parent / target if target else document
            assert anchor in anchors(page), f"{document.relative_to(root)} links to {target}#{anchor}"
