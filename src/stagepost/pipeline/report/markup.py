"""HTML and SVG elements. Every text is escaped, because an element takes markup only from this module."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = {"meta", "br"}
# Some names of SVG are in mixed case.
CASED = {"view_box": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """Return an element. Content that is no markup is escaped; None is left out, in content and in attributes.

    An underscore at the end of an attribute's name is dropped, and one within it becomes a hyphen.
    """
    written = "".join(f' {_name(key)}="{escape(str(value))}"' for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(content: Iterable[object]) -> Markup:
    """Return the parts one after the other, with all texts escaped."""
    return Markup("".join(_text(each) for each in content))


def _text(part: object) -> str:
    if part is None:
        return ""
    return part if isinstance(part, Markup) else escape(str(part))


def _name(key: str) -> str:
    return CASED.get(key, key.rstrip("_").replace("_", "-"))
