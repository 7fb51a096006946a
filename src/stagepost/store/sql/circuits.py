"""The circuit breakers of failing stages, and the probes of open circuits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.ports.circuits import CANDIDATES_MAX, CircuitBreaker, End, Pause, Probe
from stagepost.store.sql.database import SqlDatabase, SqlPart, only
from stagepost.store.sql.queue import SqlQueue
from stagepost.store.sql.texts import writable


class SqlCircuits(SqlPart):
    """Implements ``ports.circuits.Circuits``. Writes are part of the open transaction."""

    def __init__(self, database: SqlDatabase, queue: SqlQueue) -> None:
        super().__init__(database)
        self._queue = queue

    def lock(self, stage: str) -> CircuitBreaker:
        (row,) = self._run("lock_circuit", (stage,)).fetchall()
        return breaker_of(row)

    def keep(self, breaker: CircuitBreaker) -> None:
        self._database.later("keep_circuit", values_of(breaker))

    def forget(self, stage: str) -> bool:
        # Its row first, in the order in which who probes it locks them.
        is_forgotten = self._run("remove_circuit", (stage,)).rowcount == 1
        self._start_round(stage)
        return is_forgotten

    def paused(self) -> list[CircuitBreaker]:
        return [breaker_of(row) for row in self._run("list_paused").fetchall()]

    def has_succeeded(self, stage: str, since: int) -> bool:
        return bool(only(self._run("has_succeeded", {"stage": stage, "line": since}))[0])

    def due(self, stages: Sequence[str], now: int) -> list[CircuitBreaker]:
        wanted = (self._database.array(stages), now)
        return [breaker_of(row) for row in self._run("list_probes_due", wanted).fetchall()]

    def last_line(self) -> int:
        return int(only(self._run("last_waypoint"))[0])

    def is_claimed(self, row: int) -> bool:
        return bool(only(self._run("is_claimed", (row,)))[0])

    def claim_probe(self, stage: str, owner: str, end: End, now: int) -> Claim | None:
        self._queue.promote([stage], now)
        probe = self._next_probe(stage, owner, end)
        if probe is None and self._start_round(stage):
            probe = self._next_probe(stage, owner, end)
        if probe is not None:
            self._database.later("put_probed", (stage, probe.message_id))
        return probe

    def _next_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        wanted = {"stage": stage, "owner": owner, "candidates": CANDIDATES_MAX}
        return next((Claim(*row) for row in self._run(f"claim_probe_{end}", wanted).fetchall()), None)

    def _start_round(self, stage: str) -> bool:
        return self._run("remove_probed", (stage,)).rowcount > 0


def breaker_of(row: Sequence[Any]) -> CircuitBreaker:
    """Read the columns: ``messages`` as JSON, and a pause in columns of its own."""
    stage, messages, line, error, since, next_probe_at, probes, probe_row, probe_message = row
    probe = None if probe_row is None else Probe(probe_row, probe_message)
    pause = None if since is None else Pause(since, next_probe_at, probes, probe)
    return CircuitBreaker(stage, tuple(json.loads(messages)), line, error, pause)


def values_of(breaker: CircuitBreaker) -> dict[str, Any]:
    """The reverse, by the names of the columns."""
    pause = breaker.pause
    probe = None if pause is None else pause.probe
    return {
        "stage": breaker.stage,
        "messages": json.dumps(breaker.messages),
        "line": breaker.line,
        "error": writable(breaker.error),
        "paused_at": None if pause is None else pause.since,
        "next_probe_at": None if pause is None else pause.next_probe_at,
        "probes": None if pause is None else pause.probes,
        "probe": None if probe is None else probe.row,
        "probe_message": None if probe is None else probe.message_id,
    }
