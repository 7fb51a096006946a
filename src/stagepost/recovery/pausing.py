"""When it is the stage that fails, not its messages. Pure decisions: the caller keeps them, a row for each stage.

A *streak* is the failures of a stage, over different messages, since it last succeeded. Once it is long enough, the
stage *pauses*: nothing of it is claimed but one message at a time, the *probe*, after ever longer pauses. What fails
meanwhile is uncounted; a probe that succeeds ends the pause.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from zlib import crc32

from stagepost.flow.clock import SECOND, microseconds
from stagepost.flow.errors import DeclarationError
from stagepost.recovery.redelivery import DeathReason, Redelivery

PAUSE_AFTER = 10
PROBE_SECONDS_FIRST = 1.0
PROBE_SECONDS_MAX = 60.0
JITTER = 0.15
# An outage is over by then, or somebody has been told. From then on probes count: a bunch of poison ends.
UNCOUNTED_MAX = 24 * 3600 * SECOND
# After so many probes in vain, nobody who only wants to see the work done waits for a stage any longer.
GIVEN_UP_PROBES = 3
# The oldest, or the newest, that wait; the probe is the one of them with the fewest failures.
CANDIDATES_MAX = 1_000

# Deaths that the stage may have caused: a dependency that is away, or deployed code that cannot decode what waits. All
# others are the message's own fault.
STAGE_REASONS: tuple[DeathReason, ...] = ("exhausted", "undecodable")

# Of the flows that wait.
End = Literal["oldest", "newest"]


@dataclass(frozen=True, slots=True)
class Probe:
    """``row`` is the claimed message's place in the queue."""

    row: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """
    ``probes``  how many have failed
    ``probe``   the latest, until it has failed; it may have succeeded, or lost its process
    """

    since: int
    next_probe_at: int
    probes: int = 0
    probe: Probe | None = None

    @property
    def is_given_up(self) -> bool:
        return self.probes >= GIVEN_UP_PROBES

    @property
    def next_end(self) -> End:
        """By turns: a bunch of poison that waits at one end does not hide the healthy at the other."""
        return "newest" if self.probes % 2 else "oldest"

    def counts(self, now: int) -> bool:
        """Whether what fails in it is counted, as without a pause."""
        return now - self.since >= UNCOUNTED_MAX


@dataclass(frozen=True, slots=True)
class Streak:
    """
    ``messages``  that failed since the stage last succeeded, each once; at most as many as make it pause
    ``line``      the journal's last one when the latest of them failed
    ``error``     of the latest failure
    """

    stage: str
    messages: tuple[str, ...] = ()
    line: int = 0
    error: str = ""
    pause: Pause | None = None

    def failed(self, message_id: str, error: str, line: int, *, has_succeeded: bool) -> Streak:
        """``has_succeeded``: the stage, since the failure before."""
        before = () if has_succeeded else self.messages
        messages = before if message_id in before else (*before, message_id)
        return replace(self, messages=messages, line=line, error=error)

    def paused(self, now: int) -> Streak:
        return replace(self, pause=Pause(now, now + until_next_probe(0, self.stage)))

    def probing(self, probe: Probe | None) -> Streak:
        """Whether it is still at work, or what became of it, is for the queue to say."""
        return replace(self, pause=replace(self._pause, probe=probe))

    def probed_in_vain(self, error: str, now: int) -> Streak:
        probes = self._pause.probes + 1
        next_at = now + until_next_probe(probes, self.stage)
        return replace(self, error=error, pause=Pause(self._pause.since, next_at, probes))

    def is_probe(self, row: int) -> bool:
        return self._pause.probe is not None and self._pause.probe.row == row

    @property
    def _pause(self) -> Pause:
        assert self.pause is not None, "only a paused stage is probed"
        return self.pause


def check_pause_after(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise DeclarationError(
            f"pause_after must be a whole number, 2 or more, or 0 for never, not {value!r}: one message that fails "
            "says nothing of its stage"
        )
    return value


def streak_of(row: Sequence[Any]) -> Streak:
    """As a store keeps it: ``messages`` as JSON, and a pause in columns of its own."""
    stage, messages, line, error, since, next_probe_at, probes, probe_row, probe_message = row
    probe = None if probe_row is None else Probe(probe_row, probe_message)
    pause = None if since is None else Pause(since, next_probe_at, probes, probe)
    return Streak(stage, tuple(json.loads(messages)), line, error, pause)


def values_of(streak: Streak) -> dict[str, Any]:
    """The reverse, by the names of the columns."""
    pause = streak.pause
    probe = None if pause is None else pause.probe
    return {
        "stage": streak.stage,
        "messages": json.dumps(streak.messages),
        "line": streak.line,
        "error": streak.error,
        "paused_at": None if pause is None else pause.since,
        "next_probe_at": None if pause is None else pause.next_probe_at,
        "probes": None if pause is None else pause.probes,
        "probe": None if probe is None else probe.row,
        "probe_message": None if probe is None else probe.message_id,
    }


def until_next_probe(probes: int, stage: str) -> int:
    """Microseconds, after so many in vain. Stages that paused together are not probed together."""
    seconds = min(PROBE_SECONDS_FIRST * 2.0 ** min(probes, 16), PROBE_SECONDS_MAX)
    return microseconds(seconds * (1 + JITTER * (crc32(f"{stage} {probes}".encode()) % 1000) / 1000))


def is_provisional(reason: DeathReason, failures: int, redelivery: Redelivery) -> bool:
    """Whether a death, at that many failures, is taken back where the streak it belongs to makes the stage pause.

    Each death is one failure more, so the policy bounds how often a message is taken back: once where its attempts were
    used up, and at most as often as it allows attempts where the message could not be decoded.
    """
    return reason in STAGE_REASONS and failures <= redelivery.redeliveries + 1
