"""Decide when a failing stage pauses. The functions are pure: the caller stores their results, one row for each stage.

The row counts the messages of the stage that failed in a row, since it last succeeded. Once there are enough of them,
the circuit opens and the stage *pauses*. Then only one message at a time is claimed, the *probe*, after growing
intervals. Failures of a paused stage are not counted, and a probe that succeeds ends the pause.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from stagepost.flow.clock import SECOND, microseconds
from stagepost.flow.errors import DeclarationError
from stagepost.ports.circuits import CircuitBreaker, End, Pause, Probe
from stagepost.ports.dead_letters import DeathReason
from stagepost.recovery.redelivery import Redelivery

PAUSE_AFTER = 10
PROBE_SECONDS_FIRST = 1.0
PROBE_SECONDS_MAX = 60.0
JITTER = 0.15
# Few outages last longer. After this time failures count again, so that a series of poison messages ends.
UNCOUNTED_MAX = 24 * 3600 * SECOND
# The stage may cause these: a dependency is down, or deployed code cannot decode the messages. Every other reason is
# the message's own fault.
STAGE_REASONS: tuple[DeathReason, ...] = ("exhausted", "undecodable")


def with_failure(
    breaker: CircuitBreaker, message_id: str, error: str, line: int, *, has_succeeded: bool
) -> CircuitBreaker:
    """Add a failed message; ``has_succeeded`` says whether the stage committed a message since the failure before."""
    before = () if has_succeeded else breaker.messages
    messages = before if message_id in before else (*before, message_id)
    return replace(breaker, messages=messages, line=line, error=error)


def opened(breaker: CircuitBreaker, now: int) -> CircuitBreaker:
    """Pause the stage."""
    return replace(breaker, pause=Pause(now, now + until_next_probe(0, breaker.stage)))


def with_probe(breaker: CircuitBreaker, pause: Pause, probe: Probe | None) -> CircuitBreaker:
    """Note the claimed probe of a paused stage. Only the queue knows whether it still runs."""
    return replace(breaker, pause=replace(pause, probe=probe))


def with_failed_probe(breaker: CircuitBreaker, pause: Pause, error: str, now: int) -> CircuitBreaker:
    """Count a failed probe of a paused stage, and postpone the next one."""
    probes = pause.probes + 1
    next_at = now + until_next_probe(probes, breaker.stage)
    return replace(breaker, error=error, pause=Pause(pause.since, next_at, probes))


def is_probe(pause: Pause, row: int) -> bool:
    """Say whether the queue row is the latest probe."""
    return pause.probe is not None and pause.probe.row == row


def next_end(pause: Pause) -> End:
    """Choose the end for the next probe by turns, so that poison messages at one end do not hide healthy ones."""
    return "newest" if pause.probes % 2 else "oldest"


def counts_failures(pause: Pause, now: int) -> bool:
    """Say whether failures count as they do without a pause."""
    return now - pause.since >= UNCOUNTED_MAX


def check_pause_after(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise DeclarationError(
            f"pause_after must be a whole number, 2 or more, or 0 for never, not {value!r}: one failed message does "
            "not show that its stage fails"
        )
    return value


def until_next_probe(probes: int, stage: str) -> int:
    """Return the microseconds to wait after ``probes`` failed ones. The jitter spreads the probes of several stages."""
    seconds = min(PROBE_SECONDS_FIRST * 2.0 ** min(probes, 16), PROBE_SECONDS_MAX)
    return microseconds(seconds * (1 + JITTER * (crc32(f"{stage} {probes}".encode()) % 1000) / 1000))


def is_provisional(reason: DeathReason, failures: int, redelivery: Redelivery) -> bool:
    """Say whether a dead letter goes back to the queue if its stage pauses. ``failures`` includes its last one.

    Each dead letter is one more failure, so the policy limits how often a message goes back. It goes back once after
    all of its attempts. If it cannot be decoded, it goes back at most as often as the policy allows attempts.
    """
    return reason in STAGE_REASONS and failures <= redelivery.redeliveries + 1
