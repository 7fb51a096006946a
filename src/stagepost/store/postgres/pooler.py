"""Detect a pooler, such as PgBouncer, between Stagepost and the server. Only its session mode is safe.

Prepared statements, session locks, settings and LISTEN belong to a session of the server. A pooler in transaction mode
gives the session to another client at the end of each transaction, together with all of these.
"""

from __future__ import annotations

import select
from contextlib import closing
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from stagepost.flow.errors import StoreUnavailable
from stagepost.store.postgres.wire import opened

# A pooler without a free session lets its client wait.
WAIT_SECONDS = 10

# PgBouncer's answer to BEGIN, before it closes the connection.
REFUSED_IN_STATEMENT_MODE = "statement pooling mode"
SESSION = b"SELECT pg_backend_pid()"


def is_pooled(connection: psycopg.Connection[Any], place: str) -> bool:
    """Return whether a pooler is in between. A pooler invents the process number that its client cancels by."""
    return connection.info.backend_pid != _ask(connection, SESSION, place)


def check_pooler(connection: psycopg.Connection[Any], parameters: dict[str, Any], place: str) -> None:
    """Raise ``StoreUnavailable`` for a pooler that gives one session to several clients. It changes no setting."""
    if not is_pooled(connection, place):
        return
    with closing(opened(parameters)) as second:
        mode = _mode(connection, second, place)
    if mode != "session":
        raise StoreUnavailable(
            f"{place} is reached through a pooler in {mode} mode: each transaction is given another session, and "
            "Stagepost's locks, settings and prepared statements are left in those of others. Set pool_mode = session "
            "for this database in the pooler, or name the server itself."
        )


def _mode(first: psycopg.Connection[Any], second: psycopg.Connection[Any], place: str) -> str:
    """Return the mode of the pooler: whether two clients with alternating transactions keep their sessions."""
    seen: dict[psycopg.Connection[Any], set[int]] = {first: set(), second: set()}
    for each, other in ((first, second), (second, first), (first, second)):
        try:
            # One client gives its session back, while the other one asks for a session and keeps it.
            seen[each].add(_ask(each, SESSION, place))
            seen[other].add(_ask(other, b"BEGIN; " + SESSION, place))
            if seen[first].isdisjoint(seen[second]):
                seen[each].add(_ask(each, SESSION, place))
            _ask(other, b"COMMIT; " + SESSION, place)
        except psycopg.Error as error:
            if REFUSED_IN_STATEMENT_MODE in str(error):
                return "statement"
            raise
        if not seen[first].isdisjoint(seen[second]) or len(seen[each]) > 1:
            return "transaction"
    return "session"


def _ask(connection: psycopg.Connection[Any], text: bytes, place: str) -> int:
    """Return the number that the text's last statement selects. The driver itself would wait without limit."""
    pgconn = connection.pgconn
    pgconn.send_query(text)
    pgconn.flush()
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    answers: list[pq.abc.PGresult] = []
    while True:
        while pgconn.is_busy():
            if not readable.poll(WAIT_SECONDS * 1000):
                raise StoreUnavailable(
                    f"{place}: a pooler gave no session within {WAIT_SECONDS} s. Raise its pool_size: a worker process "
                    "takes one for each thread, and five more."
                )
            pgconn.consume_input()
        answer = pgconn.get_result()
        if answer is None:
            break
        answers.append(answer)
    if answers[-1].status != pq.ExecStatus.TUPLES_OK:
        raise error_from_result(answers[-1])
    return int(answers[-1].get_value(0, 0) or 0)
