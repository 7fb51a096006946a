"""Who is alive: every incarnation lives in this process, and dies with it."""

from __future__ import annotations

from stagepost.flow.claim import Claim
from stagepost.ports.liveness import EVERY_APP, IncarnationRecord, Registration, Running, RunState


class ToyIncarnation:
    """Implements ``ports.liveness.Incarnation``."""

    def __init__(self, registration: Registration, records: dict[str, ToyIncarnation]) -> None:
        self.owner = registration.owner
        self.registration = registration
        self.running: dict[int, Running] = {}
        self.beats = 0
        self._records = records
        records[self.owner] = self

    def note(self, slot: int, claim: Claim | None) -> None:
        if claim is None:
            self.running.pop(slot, None)
        else:
            self.running[slot] = Running("running", claim.row, claim.deliveries)

    def time_out(self, slot: int) -> None:
        self._set(slot, "timed-out")

    def abandon(self) -> None:
        for slot, each in list(self.running.items()):
            if each.state == "running":
                self._set(slot, "abandoned")

    def beat(self) -> str | None:
        self.beats += 1
        return None

    def close(self) -> None:
        self._records.pop(self.owner, None)

    def _set(self, slot: int, state: RunState) -> None:
        if slot in self.running:
            self.running[slot] = self.running[slot]._replace(state=state)


class ToyRegistry:
    """Implements ``ports.liveness.WorkerRegistry``."""

    def __init__(self, records: dict[str, ToyIncarnation]) -> None:
        self._records = records

    def enter(self, registration: Registration) -> ToyIncarnation:
        return ToyIncarnation(registration, self._records)

    def look(self, app: str) -> list[IncarnationRecord]:
        return [
            IncarnationRecord(
                key=each.owner,
                owner=each.owner,
                node=each.registration.node,
                process=each.registration.process,
                started_at=each.registration.started_at,
                beat=each.beats,
                is_locked=True,
                is_gone=False,
                running=tuple(each.running.values()),
            )
            for each in list(self._records.values())
            if app in (EVERY_APP, each.registration.app)
        ]

    def forget(self, key: str) -> None:
        self._records.pop(key, None)

    def close(self) -> None:
        """Looking opens nothing."""
