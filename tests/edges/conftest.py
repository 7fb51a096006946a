from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost.broker.memory import MemoryBroker
from tests.edges.direct_service import DirectService, broker_named

EFFECTS = "CREATE TABLE effect (order_id TEXT NOT NULL)"

MakeService = Callable[..., DirectService]


@pytest.fixture(params=[False, True], ids=["confirms", "atomic"])
def direct_broker(request: pytest.FixtureRequest) -> MemoryBroker:
    return broker_named(f"memory:{request.node.name}", is_atomic=request.param)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def direct_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url = str(request.getfixturevalue("new_postgres")())
        with psycopg.connect(url) as connection:
            connection.execute(EFFECTS)
        return url
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(EFFECTS)
    return f"sqlite:///{path}"


@pytest.fixture
def service(direct_url: str, direct_broker: MemoryBroker) -> Iterator[MakeService]:
    """Return a function that makes the service in a mode."""
    with ExitStack() as services:

        def make(mode: Any, *arguments: Any, **settings: Any) -> DirectService:
            made = DirectService(direct_url, direct_broker, mode, *arguments, **settings)
            return services.enter_context(closing(made))

        yield make
