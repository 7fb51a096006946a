"""What happens to the broker, or to a message, at one moment of a campaign: for ``Plan.meanwhile``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow.codec import decode_envelope
from stagepost.flow.initiation import Acceptance, Outgoing
from stagepost.ports.broker import Publication
from tests.processes import kill
from tests.soak.brokers.campaign import Soak
from tests.soak.brokers.copies import envelope_of
from tests.soak.brokers.services import PAUSE, PAUSED
from tests.waiting import PATIENCE_SECONDS, last_while_moving, wait_until

CONFIRM_SECONDS = 10.0
MEGABYTE = b"x" * 1_000_000
FULL_SECONDS = 5.0
# A receiver waits for a lock for two seconds, and stores the neighbours meanwhile.
HELD_SECONDS = 4.0


def kill_the_broker_at(steps: Sequence[str]) -> Callable[[Soak], None]:
    """Kill the broker while a process stands at a step. Every other time it comes back at its other address."""

    def kill_at_each(soak: Soak) -> None:
        for number, step in enumerate(steps):
            paused = soak.fleet.tickets / f"{PAUSED}{step}"
            (soak.fleet.tickets / f"{PAUSE}{step}").touch()
            # Each step passes soon, because transfers are always under way.
            wait_until(lambda paused=paused: _is_there(soak, paused.exists()), f"a process stands at {step}")  # type: ignore[misc]
            soak.target.replace(0.0, elsewhere=number % 2 == 1)
            paused.unlink()
            closed = soak.books.closed()
            moved = last_while_moving(
                lambda closed=closed: _is_there(soak, soak.books.closed() > closed),  # type: ignore[misc]
                soak.books.transactions,
                PATIENCE_SECONDS,
            )
            assert moved, f"nothing moves after the broker was killed at {step}"

    return kill_at_each


def _is_there(soak: Soak, found: bool) -> bool:
    if not found and len(soak.started) - soak.books.closed() < 20:
        soak.start(5)
    soak.sender.flush()
    return found


def hold_an_id(soak: Soak) -> None:
    """Let a copy of a message be stored by a transaction that does not end. Kill the receivers that hold the message.

    They have left it unsettled, and settled its neighbours.
    """
    address = f"{soak.target.prefix}payments.pay"
    body = envelope_of(address, "held", 1)
    soak.started["held"] = 1
    acceptance = Acceptance(f"broker:{address}", "copied-held", "", Outgoing(decode_envelope(body)))
    app = App(f"{soak.target.prefix}payments", database=soak.books.payments.url)
    with closing(app), closing(engine_of(app).access()) as access:
        access.session.begin()
        access.session.accepted.accept([acceptance])
        with closing(soak.target.direct().connect(PATIENCE_SECONDS)) as connection:
            publication = Publication(address, "copied-held", body, {})
            assert connection.publish([publication], CONFIRM_SECONDS) == ["confirmed"]
        end = time.monotonic() + HELD_SECONDS
        while time.monotonic() < end:
            soak.start(1)
            time.sleep(0.1)
        for pid in soak.fleet.edges():
            kill(pid)
        access.session.rollback()


def fill_the_broker(soak: Soak) -> None:
    """Leave the broker no room for some seconds: it refuses publications, and takes acknowledgements."""
    address = f"{soak.target.prefix}full"
    with closing(soak.target.direct().connect(PATIENCE_SECONDS)) as connection:
        publications = [Publication(address, "full", MEGABYTE, {})]
        stored = 0
        while connection.publish(publications, CONFIRM_SECONDS) == ["confirmed"]:
            stored += 1
        time.sleep(FULL_SECONDS)
        connection.subscribe({address: stored})
        while stored:
            deliveries = connection.receive(CONFIRM_SECONDS)
            connection.settle(deliveries)
            stored -= len(deliveries)
