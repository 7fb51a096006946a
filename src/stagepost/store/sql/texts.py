"""Texts that are not ours, as PostgreSQL can keep them: it knows every character but one."""

from __future__ import annotations

from typing import overload


@overload
def writable(text: str) -> str: ...
@overload
def writable(text: None) -> None: ...
def writable(text: str | None) -> str | None:
    """A NUL becomes its picture, ␀."""
    return text if text is None or "\0" not in text else text.replace("\0", "\u2400")
