"""What is the memory store's own."""

from __future__ import annotations

import threading

import pytest

from stagepost import DeclarationError, StoreContention, StoreError
from stagepost.flow.clock import SystemClock
from stagepost.store.sqlite.temporary import TemporaryStore
from stagepost.testing.contract.givens import a_waypoint, committed
from tests.toy_store.store import ToyStore


def test_a_second_writer_is_contention_once_it_has_waited_long_enough() -> None:
    store = ToyStore(writer_timeout_seconds=0)
    first, second = store.session(), store.session()
    first.begin()
    with pytest.raises(StoreContention, match="another writer"):
        second.begin()
    first.rollback()
    with committed(second):
        second.journal.record([a_waypoint()])


def test_a_second_writer_waits_for_the_first() -> None:
    store = ToyStore()
    first = store.session()
    seen: list[int] = []

    def write() -> None:
        second = store.session()
        with committed(second):
            seen.append(len(second.journal.history("flow")))

    first.begin()
    waiting = threading.Thread(target=write)
    waiting.start()
    first.journal.record([a_waypoint()])
    first.commit()
    waiting.join()
    assert seen == [1]


def test_it_speaks_no_sql_and_says_what_to_do_instead() -> None:
    with pytest.raises(StoreError, match=r"no SQL: use ctx\.connection\.append\(row\), or a SQLite file"):
        ToyStore().session().execute("SELECT 1", {})


def test_there_is_no_connection_to_join_and_no_folder_for_workers() -> None:
    with pytest.raises(DeclarationError, match="no connection to join"):
        ToyStore().join(object())
    with pytest.raises(DeclarationError, match="workers need a database"):
        TemporaryStore().liveness(SystemClock())


def test_two_memory_stores_are_two() -> None:
    first, second = ToyStore(), ToyStore()
    session = first.session()
    with committed(session):
        session.journal.record([a_waypoint()])
    assert second.session().journal.history("flow") == []
    assert first.uuid != second.uuid
