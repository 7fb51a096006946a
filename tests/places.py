"""Where an app of the tests has its data, and its messages."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


def bare_environment() -> dict[str, str]:
    """This process's, without what names an app or its databases. What a server may be is said for all of them."""
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("STAGEPOST_") or name == "STAGEPOST_ALLOW")
        # A session of the tests in this process has set it.
        and name != "PYSPARK_PYTHON"
    }


class InTwo:
    """Makes databases for apps whose messages are in another one than their data."""

    def __init__(self, make: Callable[[], str], mode: str) -> None:
        self.mode = mode
        self._make = make

    def __call__(self) -> str:
        return self._make()


def place(request: pytest.FixtureRequest) -> Callable[[], str]:
    """What ``memory``, ``sqlite``, ``postgres`` names, with a mode behind it for those in two databases."""
    store, _, mode = request.param.partition("-")
    make: Callable[[], str] = (lambda: "toy:") if store == "memory" else request.getfixturevalue(f"new_{store}")
    return InTwo(make, mode) if mode else make
