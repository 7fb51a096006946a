"""``receive`` records a message in the consumer's own transaction: it commits with the work, or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from stagepost import DeclarationError
from stagepost.flow.errors import IllegalCall, InvalidId
from stagepost.gateway.receiver import AnotherBody, AtWork, Received, purge, receive, received
from tests.receiver.books import Connect, entries, write


def test_a_message_is_new_until_its_work_is_committed(connect: Connect) -> None:
    with closing(connect()) as connection:
        assert receive(connection, "m1", b"one") == Received(is_new=True)
        write(connection, "m1")
        connection.rollback()
        assert receive(connection, "m1", b"one").is_new
        write(connection, "m1")
        connection.commit()
        assert receive(connection, "m1", b"one") == Received(is_new=False)
        assert receive(connection, "m2", b"one").is_new
        connection.rollback()
    assert entries(connect) == ["m1"]


def test_another_body_of_the_same_id_is_no_copy(connect: Connect) -> None:
    with closing(connect()) as connection:
        receive(connection, "m1", b"one")
        connection.commit()
        with pytest.raises(AnotherBody, match="m1"):
            receive(connection, "m1", b"two")
        connection.rollback()


def test_a_copy_learns_at_once_that_the_first_one_is_at_work(connect: Connect) -> None:
    with closing(connect()) as first, closing(connect()) as second:
        assert receive(first, "m1").is_new
        with pytest.raises(AtWork):
            receive(second, "m1")
        second.rollback()
        first.commit()
        assert not receive(second, "m1").is_new
        second.rollback()


def test_a_caller_in_autocommit_mode_must_begin_a_transaction(url: str, connect: Connect) -> None:
    connection: Any
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        connection = psycopg.connect(url, autocommit=True)
    with closing(connection):
        with pytest.raises(IllegalCall, match="autocommit"):
            receive(connection, "m1")
        connection.execute("BEGIN")
        assert receive(connection, "m1").is_new
        connection.rollback()
        connection.execute("BEGIN")
        assert receive(connection, "m1").is_new
        connection.rollback()


def test_the_rows_of_the_caller_may_have_any_form(url: str, connect: Connect) -> None:
    with closing(connect()) as connection:
        connection.row_factory = sqlite3.Row if url.startswith("sqlite") else dict_row
        for is_new in (True, False):
            assert receive(connection, "m1").is_new is is_new
            connection.commit()


@pytest.mark.parametrize("message_id", ["", " m1", "m\n1", "m" * 201])
def test_an_id_that_is_none_is_refused(connect: Connect, message_id: str) -> None:
    with closing(connect()) as connection, pytest.raises(InvalidId):
        receive(connection, message_id)


def test_old_ids_are_purged_the_oldest_first_and_not_too_many_at_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 86_400 * 1_000_000
    with closing(connect()) as connection:
        for number in range(5):
            monkeypatch.setattr(received, "now", lambda number=number: number * day)
            receive(connection, f"m{number}")
        connection.commit()
        monkeypatch.setattr(received, "now", lambda: 5 * day)
        assert purge(connection, older_than_days=2, most=2) == 2
        assert purge(connection, older_than_days=2, most=2) == 1
        assert purge(connection, older_than_days=2, most=2) == 0
        connection.commit()
        assert [receive(connection, f"m{number}").is_new for number in range(5)] == [True, True, True, False, False]
        connection.rollback()


def test_only_connections_of_the_two_drivers_are_taken() -> None:
    with pytest.raises(DeclarationError, match="driver_connection"):
        receive(object(), "m1")


def test_importing_the_receiver_imports_no_http_server_and_no_driver() -> None:
    code = (
        "import sys, stagepost.gateway.receiver; "
        "print(sorted({'starlette', 'hypercorn', 'httpcore2', 'jsonschema', 'psycopg'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
