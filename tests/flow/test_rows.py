"""What ``ctx.sql`` gives back."""

from __future__ import annotations

import pytest

from stagepost import Row, Rows

PEOPLE = Rows(("id", "name"), [(1, "Ada"), (2, "Grace")], -1)


def test_a_row_is_read_by_name_by_position_and_by_unpacking() -> None:
    row = PEOPLE[0]
    number, name = row
    assert (row["id"], row["name"], row[0], row[-1], row[:1], number, name) == (1, "Ada", 1, "Ada", (1,), 1, "Ada")
    assert row.as_dict() == {"id": 1, "name": "Ada"}
    assert len(row) == 2
    assert repr(row) == "Row(id=1, name='Ada')"


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(KeyError, match="no column 'nom'; the row has id, name"):
        PEOPLE[0]["nom"]


def test_rows_equal_what_holds_the_same_values() -> None:
    assert PEOPLE[0] == (1, "Ada")
    assert PEOPLE[0] == [1, "Ada"]
    assert PEOPLE[0] == Row(("a", "b"), (1, "Ada"))
    assert PEOPLE[0] != PEOPLE[1]
    assert PEOPLE[0] != "Ada"
    assert len({PEOPLE[0], PEOPLE[0], PEOPLE[1]}) == 2


def test_rows_are_a_sequence() -> None:
    assert [row["name"] for row in PEOPLE] == ["Ada", "Grace"]
    assert len(PEOPLE) == 2
    assert PEOPLE[1]["name"] == "Grace"
    assert [row["id"] for row in PEOPLE[:1]] == [1]
    assert PEOPLE.columns == ("id", "name")
    assert repr(PEOPLE) == "Rows([Row(id=1, name='Ada'), Row(id=2, name='Grace')], rowcount=-1)"


def test_the_first_row_the_only_row_and_the_only_value() -> None:
    none = Rows(("id",), [], 0)
    only = Rows(("id",), [(7,)], -1)
    assert PEOPLE.first() == (1, "Ada")
    assert none.first() is None
    assert only.one() == (7,)
    assert only.scalar() == 7
    assert none.scalar() is None
    for rows in (PEOPLE, none):
        with pytest.raises(LookupError, match=f"exactly one row, the statement gave {len(rows)}"):
            rows.one()
