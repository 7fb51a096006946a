"""The retention of a store: how long each kind of row is kept, and how old its oldest row is."""

from __future__ import annotations

from typing import NamedTuple

from stagepost.ports.session import Session
from stagepost.transaction.retention import Rules


class Kept(NamedTuple):
    """One kind of row. Ages are hours of housekeeping.

    ``hours``         the retention; None for rows that stay
    ``oldest_hours``  the age of the oldest row; None where there is no row
    """

    what: str
    hours: int | None
    oldest_hours: int | None


def read_retention(session: Session, rules: Rules) -> list[Kept]:
    """Read the retention of each kind of row of a database."""
    retention = session.retention
    counted = retention.hours()
    kept: list[Kept] = []
    for scope in retention.scopes():
        oldest = retention.oldest_id(scope)
        kept.append(Kept(f"ids of {scope}", rules.of_scope(scope), None if oldest is None else counted - oldest))
    return kept
