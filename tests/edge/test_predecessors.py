"""An app that only asks looks after those of its own who asked before, and are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from stagepost import App
from stagepost.edge.looks import PREDECESSORS_SECONDS
from stagepost.flow.clock import SystemClock
from stagepost.ports.liveness import Registration
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import a_row, committed
from tests.waiting import wait_until


@dataclass
class Number:
    value: int


@pytest.fixture
def url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def gone(url: str, node: str) -> str:
    """Somebody on another machine, who held a reply when it was switched off."""
    store = PostgresStore(url)
    owner = f"web/{node}"
    with closing(store.liveness(SystemClock())) as lives:
        lives.add_row(Registration("web", owner, node, "elsewhere", 1, 1, 0, []))
    with closing(store.session()) as session, committed(session):
        session.queue.enqueue([a_row(f"to-{owner}", stage=owner)])
        session.queue.claim([owner], 1, owner, 0)
    return owner


def test_one_that_was_switched_off_with_its_machine_is_seen_to_be_gone_by_looking_again(
    url: str, server: psycopg.Connection[Any], clock: ManualClock
) -> None:
    asked_before, worked = gone(url, "edge@pod-1"), gone(url, "worker@pod-2")
    with closing(App("web", database=url, clock=clock)) as app:
        remote = app.remote("double", Number, Number)
        app.request(remote, Number(1), flow_id="f1")

        def owners(table: str) -> set[str]:
            return {owner for (owner,) in server.execute(f"SELECT owner FROM {table} WHERE owner IS NOT NULL".encode())}

        def is_forgotten() -> bool:
            clock.advance(PREDECESSORS_SECONDS + 1)
            return asked_before not in owners("stagepost_incarnation")

        wait_until(is_forgotten, "its row is gone")
        # What a worker left is a worker's to take over.
        assert worked in owners("stagepost_incarnation")
        assert owners("stagepost_ready") == {worked}
