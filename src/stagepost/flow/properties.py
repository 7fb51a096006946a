"""What sticks to a flow: a value by name, carried by every message that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from stagepost.flow import codec
from stagepost.flow.initiation import encode_property


class Properties(MutableMapping[str, Any]):
    """Sticky values of a flow, JSON each: what is set here is seen by everything sent from now on, and downstream.

    ``check`` is told what is about to change, and raises ``IllegalCall`` where that is too late, or not allowed there.
    """

    def __init__(self, encoded: dict[str, msgspec.Raw], check: Callable[[str], None]) -> None:
        self._encoded = encoded
        self._check = check

    def encoded(self) -> dict[str, msgspec.Raw]:
        return dict(self._encoded) if self._encoded else {}

    def __getitem__(self, name: str) -> Any:
        return codec.decode_property(self._encoded[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(f"properties[{name!r}]")
        self._encoded[name] = encode_property(name, value)

    def __delitem__(self, name: str) -> None:
        self._check(f"properties[{name!r}]")
        del self._encoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __len__(self) -> int:
        return len(self._encoded)
