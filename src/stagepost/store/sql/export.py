"""Compose the reading of a table: the columns and conditions that Spark needs, around the statement of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stagepost.ports.export import TABLES, Condition, TableQuery

Bind = Callable[[Condition, object], str]
Compare = Callable[[Condition, str], str]


def composed(statement: str, query: TableQuery, bind: Bind, compare: Compare) -> str:
    """Return the text that reads the query's columns of the rows of ``statement``.

    Names come from ``TABLES``, operators from the port, and values are bound: ``bind`` returns a value's placeholder,
    and ``compare`` the column as it is compared. Raises ``KeyError`` for a column that the table does not have.
    """
    kinds = TABLES[query.table]
    columns = ", ".join(f'"{name}"' for name in query.columns if kinds[name])
    conditions = " AND ".join(_conditions(query, bind, compare))
    where = f" WHERE {conditions}" if conditions else ""
    return f"SELECT {columns} FROM ({statement}) AS exported{where}"  # noqa: S608 - see above


def _conditions(query: TableQuery, bind: Bind, compare: Compare) -> Iterator[str]:
    kinds = TABLES[query.table]
    for each in query.conditions:
        if kinds[each.column] == "envelope" and not each.operator.startswith("is "):
            continue
        column = compare(each, f'"{each.column}"')
        match each.operator:
            case "is null" | "is not null":
                yield f"{column} {each.operator.upper()}"
            case "in":
                yield f"{column} IN ({', '.join(bind(each, value) for value in each.value)})"
            case _:
                yield f"{column} {each.operator} {bind(each, each.value)}"
