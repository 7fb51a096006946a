"""Capability: the circuit breakers of stages. A paused stage is an open circuit; ``recovery.pausing`` decides on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stagepost.flow.claim import Claim

# A probe is chosen among this many waiting messages: of the oldest flows, or of the newest.
CANDIDATES_MAX = 1_000
# A stage with this many failed probes no longer keeps a caller waiting that wants a drained queue.
GIVEN_UP_PROBES = 3

# The end of the waiting flows at which a probe is chosen.
End = Literal["oldest", "newest"]


@dataclass(frozen=True, slots=True)
class Probe:
    """A claimed message that tests a paused stage; ``row`` is its queue row."""

    row: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The open circuit of a stage.

    ``probes``  how many probes have failed
    ``probe``   the latest probe until it has failed; it may have succeeded, or lost its process
    """

    since: int
    next_probe_at: int
    probes: int = 0
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The circuit breaker of a stage: its failures in a row, and its open circuit if it is paused.

    ``messages``  the messages that failed since the stage last succeeded, each once; at most ``pause_after`` of them
    ``line``      id of the journal's last line at the latest failure
    ``error``     text of the latest failure
    """

    stage: str
    messages: tuple[str, ...] = ()
    line: int = 0
    error: str = ""
    pause: Pause | None = None


class Circuits(Protocol):
    """The circuit breakers' part of a session. Writes happen in its open transaction."""

    def lock(self, stage: str) -> CircuitBreaker:
        """Return the stage's circuit breaker, locked until the transaction ends; empty if the stage never failed."""

    def keep(self, breaker: CircuitBreaker) -> None:
        """Write a circuit breaker that was locked before."""

    def forget(self, stage: str) -> bool:
        """Delete the stage's circuit breaker, which closes its circuit. Returns False where there is none."""

    def paused(self) -> list[CircuitBreaker]:
        """Return the circuit breakers of all paused stages, by name."""

    def has_succeeded(self, stage: str, since: int) -> bool:
        """Say whether the stage committed a message after that line of the journal."""

    def due(self, stages: Sequence[str], now: int) -> list[CircuitBreaker]:
        """Return the circuit breakers of paused stages whose next probe is due, locked.

        Skips those that another session has locked.
        """

    def last_line(self) -> int:
        """Return the id of the journal's last line, 0 for an empty journal. Later lines have greater ids."""

    def is_claimed(self, row: int) -> bool:
        """Say whether the queue row is claimed: its probe is running."""

    def claim_probe(self, stage: str, owner: str, end: End, now: int) -> Claim | None:
        """Claim the waiting message of a paused stage with the fewest failures; a due delayed message waits too.

        Of several, it takes that of the oldest or the newest flow, as ``end`` says. A message is probed again only
        after all other waiting messages had their turn.
        """
