from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.places import place


@pytest.fixture(params=["sqlite", "postgres", "sqlite-outbox", "postgres-two_phase"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """As everywhere, without the store in memory, which no driver knows."""
    return place(request)
