from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.receiver.books import Connect, connector, prepare


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    new_url: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    made = new_url()
    prepare(connector(made))
    return made


@pytest.fixture
def connect(url: str) -> Connect:
    return connector(url)
