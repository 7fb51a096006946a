"""Texts that are not ours, as PostgreSQL can keep them: it knows every character but one."""

from __future__ import annotations


def writable(text: str) -> str:
    """A NUL becomes its picture, ␀."""
    return text.replace("\0", "\u2400")
