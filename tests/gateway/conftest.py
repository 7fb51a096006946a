"""A gateway for an app with one endpoint, and a client that has its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stagepost import App
from stagepost.gateway import Route, asgi
from tests.gateway.asgi_client import Client, client_of
from tests.gateway.gateways import Gateways
from tests.gateway.shop import BY_FIELDS, ERP, ORDERS, WITH_KEY, with_endpoint
from tests.processes import ProcessGroup

NewGateway = Callable[..., Client]


@pytest.fixture
def shop(app: App) -> App:
    """The app of the chosen store, with the endpoint ``orders.place``."""
    return with_endpoint(app)


@pytest.fixture
def sqlite_shop(new_sqlite: Callable[[], str]) -> Iterator[App]:
    made = with_endpoint(App("shop", database=new_sqlite()))
    yield made
    made.close()


@pytest.fixture
def gateway_of() -> Iterator[NewGateway]:
    """Makes a gateway for an app, and returns a client with the producer's key."""
    with ExitStack() as stack:

        def make(app: App, *routes: Route, **options: Any) -> Client:
            is_own = "authenticate" in options or "anonymous" in options
            given: dict[str, Any] = {} if is_own else {"producers": [ERP]}
            given |= options
            headers = WITH_KEY if ERP in given.get("producers", []) else {}
            return stack.enter_context(client_of(asgi(app, routes=routes or [ORDERS, BY_FIELDS], **given), headers))

        yield make


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    made = ProcessGroup()
    yield made
    made.kill_all()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def gateways(request: pytest.FixtureRequest, tmp_path: Path, group: ProcessGroup) -> Iterator[Gateways]:
    make: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    made = Gateways(make(), tmp_path, group)
    yield made
    made.close()
