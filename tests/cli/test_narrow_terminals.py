"""Terminals that are narrow, dumb, or of ASCII, and pipes: figures are whole, and the progress is a bar or lines."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.cells import cell_len
from rich.console import Console

from stagepost.cli import audit_report
from stagepost.cli.audit_report import print_report
from stagepost.cli.show import WIDTH_WITHOUT_TERMINAL, console, progress
from tests.pipeline.test_audit_page import STAGE, a_report, window

MANY = 1_234_567


def printed(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    text = io.StringIO()
    out = Console(file=text, width=width, highlight=False, emoji=False, color_system=None)
    monkeypatch.setattr(audit_report, "console", lambda: out)
    counts = dict.fromkeys(("sent", "committed", "dead", "failures"), MANY)
    stage = {**a_report().stages[0], "expired": 0, "edited": 0, "open": 0, "deaths": 0, **counts}
    row = window(0, flows=MANY, sent=MANY, committed=MANY, expired=0, edited=0)
    print_report(a_report(stages=[stage], windows=[row]).as_dict())
    return text.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_shows_whole_figures(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would cut them: 1,234,567 messages as 12…"""
    text = printed(width, monkeypatch)
    (stage,) = [line.split() for line in text.splitlines() if line.strip().startswith(STAGE) and str(MANY) in line]
    assert stage[:5] == [STAGE, *4 * [str(MANY)]]
    (first,) = [line.split() for line in text.splitlines() if "2026-03-01T12:00:00Z" in line]
    assert first[1:4] == 3 * [str(MANY)]
    assert first[-1] == "final"
    assert "committed" in text
    assert "expired" not in text
    assert "a1b2c3d4e5f6" in text


def test_a_wide_terminal_shows_all_columns_within_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(WIDTH_WITHOUT_TERMINAL, monkeypatch)
    assert "expired" in text
    assert max(cell_len(line) for line in text.splitlines()) <= WIDTH_WITHOUT_TERMINAL


@contextmanager
def terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytearray]:
    """Let standard error be a terminal of that encoding. The bytes are complete after the block."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    got = bytearray()

    def read() -> None:
        while True:
            try:
                got.extend(os.read(ours, 65_536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding=encoding, errors="backslashreplace") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield got
        stream.flush()
    reader.join()
    os.close(ours)


def show() -> None:
    with progress() as shown:
        shown.add_task("reading the journal", total=None)
        shown.refresh()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_the_bar_has_characters_that_its_terminal_knows(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(encoding, monkeypatch) as got:
        show()
    assert b"reading the journal" in got
    assert b"\\u" not in got
    assert (b"\xe2\xa0" in got) == (encoding == "utf-8")


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_no_bar_though_colours_are_wanted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of continuous integration sets these variables, and keeps standard error in a log."""
    monkeypatch.setenv(name, "1")
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    assert progress().disable
    show()
    assert text.getvalue() == ""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert console().width == WIDTH_WITHOUT_TERMINAL


def test_a_terminal_that_cannot_write_a_line_again_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal("utf-8", monkeypatch):
        assert progress().disable
