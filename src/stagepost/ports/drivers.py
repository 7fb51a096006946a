"""Find the driver of a URL scheme: one of Stagepost's own, or one that a package adds by an entry point.

The entry point's name is the scheme, its value the driver. Stagepost's own drivers are not entry points, because
reading those of all installed packages takes some 50 ms a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from stagepost.flow.errors import DeclarationError


class DriverFinder:
    """The drivers of one kind. ``built_in`` gives the module of each scheme, ``kind`` is their plural in errors."""

    def __init__(self, group: str, kind: str, built_in: Mapping[str, str]) -> None:
        self._group = group
        self._kind = kind
        self._built_in = built_in
        self._found: dict[str, Any] = {}

    def find(self, url: str) -> Any:
        """Return the driver of the URL's scheme, or None. Raises ``DeclarationError`` where two packages have one."""
        scheme, colon, _ = url.partition(":")
        if not colon:
            return None
        if scheme not in self._found:
            self._found[scheme] = self._load(scheme)
        return self._found[scheme]

    def forget(self) -> None:
        """Look again for each driver, because packages came or went."""
        self._found.clear()

    def _load(self, scheme: str) -> Any:
        if scheme in self._built_in:
            return import_module(self._built_in[scheme])
        from importlib.metadata import entry_points  # noqa: PLC0415 - only a scheme of another package needs them

        points = list(entry_points(group=self._group, name=scheme))
        if len(points) > 1:
            packages = " and ".join(sorted(each.dist.name if each.dist else each.value for each in points))
            raise DeclarationError(
                f"{scheme}: is the URL scheme of two {self._kind}, of the packages {packages}. Uninstall one of them."
            )
        return points[0].load() if points else None
