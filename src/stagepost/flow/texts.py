"""Texts of others, an exception's or a message's, as logs, tables and a terminal may have them."""

from __future__ import annotations

LINE_LENGTH_MAX = 2_000
LAYOUT = {"\n", "\t"}


def shortened(text: str, length: int = LINE_LENGTH_MAX) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def one_line(text: str, length: int = LINE_LENGTH_MAX) -> str:
    """The beginning, with line breaks, escape sequences and lone surrogates spelt out."""
    shown = shortened(text, length)
    return shown if shown.isprintable() else "".join(each if each.isprintable() else _spelt_out(each) for each in shown)


def lines(text: str) -> str:
    """All of it, with its lines."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in LAYOUT else _spelt_out(each) for each in text)


def _spelt_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
