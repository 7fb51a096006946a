"""Make foreign texts, such as an exception's or a message's, safe for logs, tables and a terminal."""

from __future__ import annotations

LINE_LENGTH_MAX = 2_000
LAYOUT = {"\n", "\t"}


def shortened(text: str, length: int = LINE_LENGTH_MAX) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def one_line(text: str, length: int = LINE_LENGTH_MAX) -> str:
    """Return the beginning of a text, with line breaks, escape sequences and lone surrogates escaped."""
    shown = shortened(text, length)
    return shown if shown.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in shown)


def lines(text: str) -> str:
    """Return the whole text with its line breaks and tabs, and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in LAYOUT else _escaped(each) for each in text)


def as_sentence(text: object) -> str:
    """Return a text, such as an error, with a full stop, so that another sentence can follow.

    A text that ends a sentence itself gets none.
    """
    sentence = str(text).rstrip()
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
