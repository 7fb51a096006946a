"""Contract of ``ports.liveness``: what other processes see of an incarnation.

    python -m stagepost.testing.contract.liveness URL APP

prints the incarnations of an app as that process sees them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SystemClock
from stagepost.ports.liveness import EVERY_APP, Incarnation, IncarnationRecord, Registration, Running, WorkerRegistry
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW, Given, a_row, committed, enqueued, eventually

OWNER = "shop/0190aaaa-0000-7000-8000-000000000001"
Seen = Callable[[str], list[IncarnationRecord]]


def a_registration(owner: str = OWNER) -> Registration:
    return Registration(owner.partition("/")[0], owner, "worker@host:1", "host", 1, slots=2, started_at=NOW)


class LivenessContract(Given):
    """Contract of a store's incarnations. Override ``seen`` for a store that ends with its process."""

    @pytest.fixture
    def seen(self, store: Store) -> Seen:
        """Read the incarnations of an app in another process."""

        def look(app: str) -> list[IncarnationRecord]:
            command = [sys.executable, "-m", __name__, store.address, app]
            printed = subprocess.run(command, check=True, capture_output=True).stdout
            return msgspec.json.decode(printed, type=list[IncarnationRecord])

        return look

    @pytest.fixture
    def registry(self, store: Store, clock: ManualClock) -> Iterator[WorkerRegistry]:
        with closing(store.liveness(clock)) as registry:
            yield registry

    @pytest.fixture
    def incarnation(self, registry: WorkerRegistry) -> Iterator[Incarnation]:
        with closing(registry.enter(a_registration())) as incarnation:
            yield incarnation

    @pytest.fixture
    def claims(self, session: Session, incarnation: Incarnation) -> list[Claim]:
        """Two claims of the incarnation, in the order of their rows, noted as running."""
        enqueued(session, a_row("m1"), a_row("m2"))
        with committed(session):
            claims = sorted(session.queue.claim(["pay"], 2, OWNER, NOW), key=lambda claim: claim.row)
        for slot, claim in enumerate(claims):
            incarnation.note(slot, claim)
        return claims

    def test_an_incarnation_is_seen_locked_with_its_description(self, incarnation: Incarnation, seen: Seen) -> None:
        (record,) = seen("shop")
        assert incarnation.owner == record.owner == OWNER
        assert (record.node, record.process, record.started_at) == ("worker@host:1", 1, NOW)
        assert record.is_locked
        assert not record.is_gone
        assert record.running == ()

    def test_each_app_has_its_own_incarnations(
        self, incarnation: Incarnation, registry: WorkerRegistry, seen: Seen
    ) -> None:
        with closing(registry.enter(a_registration("shop-2/0190aaaa-0000-7000-8000-000000000002"))) as second:
            assert [each.owner for each in seen("shop")] == [incarnation.owner]
            assert [each.owner for each in seen("shop-2")] == [second.owner]
            assert {each.owner for each in seen(EVERY_APP)} == {incarnation.owner, second.owner}

    def test_a_heartbeat_changes_the_record(self, incarnation: Incarnation, clock: ManualClock, seen: Seen) -> None:
        before = seen("shop")
        clock.advance(1)
        assert incarnation.beat() is None
        # A store may move its heartbeats in a thread of its own.
        assert eventually(lambda: [each.beat for each in seen("shop")] != [each.beat for each in before])

    def test_the_record_names_the_messages_that_run(self, claims: list[Claim], seen: Seen) -> None:
        (record,) = seen("shop")
        assert set(record.running) == {Running("running", each.row, each.deliveries) for each in claims}

    def test_the_record_says_how_an_attempt_ended(
        self, incarnation: Incarnation, claims: list[Claim], seen: Seen
    ) -> None:
        incarnation.time_out(1)
        incarnation.abandon()
        states = {each.row: each.state for (record,) in [seen("shop")] for each in record.running}
        assert states == {claims[0].row: "abandoned", claims[1].row: "timed-out"}

    def test_a_closed_incarnation_is_not_seen(self, registry: WorkerRegistry, seen: Seen) -> None:
        registry.enter(a_registration()).close()
        assert seen("shop") == []

    def test_a_record_that_is_gone_can_be_forgotten_again(self, registry: WorkerRegistry, seen: Seen) -> None:
        incarnation = registry.enter(a_registration())
        (record,) = seen("shop")
        incarnation.close()
        registry.forget(record.key)
        registry.forget(record.key)
        assert seen(EVERY_APP) == []


if __name__ == "__main__":
    _, url, app = sys.argv
    with closing(driver_of(url).open_existing(url, "the command line").liveness(SystemClock())) as looker:
        sys.stdout.buffer.write(msgspec.json.encode(looker.look(app)))
