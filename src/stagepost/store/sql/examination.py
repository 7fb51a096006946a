"""Reading the tables for ``stagepost doctor``, in either database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from stagepost.flow.clock import microseconds
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.broker import EdgeAddresses
from stagepost.ports.declarations import Undeclared
from stagepost.ports.edge import EdgeView
from stagepost.ports.findings import Finding
from stagepost.ports.health import (
    LATELY_SECONDS,
    Backlogs,
    ClaimCount,
    Heart,
    Lately,
    Paused,
    QueueHealth,
    StoreHealth,
    Unseen,
    Waiting,
)
from stagepost.ports.outbox import Backlog
from stagepost.store.sql.database import Row, text_of
from stagepost.store.sql.edge import OUTBOUND

T = TypeVar("T")

# Runs a statement, given by its name and parameters.
Rows = Callable[..., list[Row]]


class Part(Protocol):
    """Looks at one part. Where it cannot be seen, it returns None and adds to ``unseen``."""

    def __call__(self, what: str, look: Callable[[], T], /) -> T | None: ...


def health_of(
    place: str,
    findings: list[Finding],
    rows: Rows,
    part: Part,
    unseen: list[Unseen],
    now: int,
    hearts: Callable[[], list[Heart]],
) -> StoreHealth:
    """Add the health of the tables to a store's own findings."""
    return StoreHealth(
        place,
        findings,
        queue=part("the queue", lambda: _queue(rows, now, hearts)),
        paused=part("paused stages", lambda: _paused(rows)),
        undeclared=part("declared stages", lambda: [Undeclared(*row) for row in rows("list_undeclared")]),
        backlogs=part("messages to be sent", lambda: _backlogs(rows)),
        edge=part("addresses at the broker", lambda: _edge(rows)),
        views=part("the processes at the broker", lambda: [EdgeView(*row) for row in rows("list_edges")]),
        unseen=unseen,
    )


def _queue(rows: Rows, now: int, hearts: Callable[[], list[Heart]]) -> QueueHealth:
    """Ask ``hearts`` after the owners of claims were read."""
    since = {"since": now - microseconds(LATELY_SECONDS)}
    return QueueHealth(
        waiting=[Waiting(*row) for row in rows("list_waiting", {"now": now})],
        lately=[Lately(*row) for row in rows("count_letters_since", since)],
        claims=[ClaimCount(*row) for row in rows("list_holdings")],
        hearts=hearts(),
    )


def _paused(rows: Rows) -> list[Paused]:
    return [
        Paused(stage, paused_at, probes, error)
        for stage, _, _, error, paused_at, _, probes, _, _ in rows("list_paused")
    ]


def _edge(rows: Rows) -> EdgeAddresses:
    ((store,),) = rows("find_meta", {"key": "uuid"})
    destinations = [stage.removeprefix(OUTBOUND_PREFIX) for (stage,) in rows("list_destinations", OUTBOUND)]
    return EdgeAddresses(text_of(store), dict(rows("count_consumers")), destinations)


def _backlogs(rows: Rows) -> Backlogs:
    (held,), (unsent,) = rows("count_held"), rows("count_unsent")
    return Backlogs(Backlog(*held), Backlog(*unsent))
