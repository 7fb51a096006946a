"""Read rows as Arrow, by ADBC, which is an extra.

ADBC reads by COPY, which takes no parameters. So settings of the transaction hold the values. A statement reads each
setting in a subquery, which PostgreSQL computes once and uses as a bound of its index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from psycopg.conninfo import make_conninfo

from stagepost.flow.errors import DeclarationError
from stagepost.ports.export import TABLES, Condition, Kind, TableQuery
from stagepost.store.postgres.faults import translate_code
from stagepost.store.postgres.statements import SQL, Statement
from stagepost.store.sql.export import composed

READ_ONLY = "SET TRANSACTION READ ONLY"
PREFIX = "stagepost."
SHOW_ENCODING = "SELECT current_setting('server_encoding')"
# The server checks texts, and gives them as UTF-8. SQL_ASCII is the one encoding without a check.
CHECKED = {"UTF8"}
# The size of a batch in bytes. It is small, so that the next one is read while Spark takes this one.
BATCHES = {"adbc.postgresql.batch_size_hint_bytes": str(2 << 20)}
CASTS: Mapping[Kind, str] = {
    "text": "text",
    "integer": "bigint",
    "long": "bigint",
    "double": "double precision",
    "moment": "bigint",
}
_PARAMETER = re.compile(r"\$(\d+)((?:::\w+)*)")


def arrow_batches(
    parameters: Mapping[str, Any], place: str, query: TableQuery, values: Mapping[str, Any]
) -> Iterator[Sequence[Any]]:
    """Yield the columns of each batch, as Arrow arrays. ``values`` are those of the table's statement.

    Raises ``StoreError``, and ``DeclarationError`` without ADBC.
    """
    try:
        from adbc_driver_postgresql import dbapi as adbc  # noqa: PLC0415 - only Spark's readers need the extra
    except ImportError as error:
        raise DeclarationError(
            f"Spark cannot read {place}: the package adbc-driver-postgresql is not installed where the task runs. "
            "Install stagepost with the extra spark on the driver and on the executors."
        ) from error
    text, settings = _statement(query, values)
    try:
        with closing(adbc.connect(make_conninfo(**parameters))) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(READ_ONLY)
            calls = [f", set_config('{name}', ${at}, true)" for at, name in enumerate(settings, 1)]
            cursor.execute(f"{SHOW_ENCODING}{''.join(calls)}", list(settings.values()) or None)
            (encoding, *_) = cursor.fetchone()
            cursor.adbc_statement.set_options(**BATCHES)
            cursor.execute(text)
            for batch in cursor.fetch_record_batch():
                yield batch.columns if encoding in CHECKED else [_as_bytes(column) for column in batch.columns]
    except adbc.Error as error:
        raise translate_code(error.sqlstate, str(error), place) from error


def _statement(query: TableQuery, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the text that reads the query, and the settings that it reads."""
    settings: dict[str, str] = {}
    kinds = TABLES[query.table]

    def setting(name: str, value: object, cast: str) -> str:
        settings[PREFIX + name] = str(value)
        return f"(SELECT current_setting('{PREFIX}{name}'){cast})"

    def bind(condition: Condition, value: object) -> str:
        return setting(f"value_{len(settings)}", value, f"::{CASTS[kinds[condition.column]]}")

    def compare(condition: Condition, column: str) -> str:
        # Spark compares the bytes of texts.
        is_range = kinds[condition.column] == "text" and condition.operator in ("<", "<=", ">", ">=")
        return f'{column} COLLATE "C"' if is_range else column

    def given(statement: Statement) -> str:
        def replaced(match: re.Match[str]) -> str:
            name = statement.names[int(match[1]) - 1]
            return setting(name, values[name], match[2])

        return _PARAMETER.sub(replaced, statement.text.decode())

    usable = [each for each in query.conditions if not _has_nul(each.value)]
    table = TableQuery(query.table, query.columns, usable, query.span)
    return composed(given(SQL[f"export_{query.table}"]), table, bind, compare), settings


def _as_bytes(column: Any) -> Any:
    return column.cast("binary") if str(column.type) == "string" else column


def _has_nul(value: object) -> bool:
    """PostgreSQL's texts hold no NUL."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, str) and "\0" in each for each in values)
