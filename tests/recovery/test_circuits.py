"""When a stage pauses, when it is probed, and what counts meanwhile: decided from values alone."""

from __future__ import annotations

import pytest

from stagepost import App, DeclarationError, Redelivery
from stagepost.flow.clock import SECOND
from stagepost.ports.circuits import CircuitBreaker, Pause, Probe
from stagepost.recovery.pausing import (
    JITTER,
    counts_failures,
    is_probe,
    is_provisional,
    next_end,
    opened,
    until_next_probe,
    with_failed_probe,
    with_failure,
    with_probe,
)
from stagepost.store.sql.circuits import breaker_of, values_of

NOW = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND


def test_a_circuit_breaker_counts_different_messages_alone() -> None:
    breaker = CircuitBreaker("pay")
    for message_id in ("m1", "m2", "m1", "m1", "m3"):
        breaker = with_failure(breaker, message_id, f"no {message_id}", 5, has_succeeded=False)
    assert breaker == CircuitBreaker("pay", ("m1", "m2", "m3"), 5, "no m3")


def test_a_success_since_begins_it_anew() -> None:
    breaker = CircuitBreaker("pay", ("m1", "m2"), 5, "no")
    assert with_failure(breaker, "m2", "again", 9, has_succeeded=True) == CircuitBreaker("pay", ("m2",), 9, "again")


def test_a_pause_begins_with_one_that_is_short() -> None:
    paused = opened(CircuitBreaker("pay", ("m1",), 5, "no"), NOW)
    assert paused.pause is not None
    assert paused.pause.since == NOW
    assert SECOND <= paused.pause.next_probe_at - NOW <= SECOND * (1 + JITTER)
    assert (paused.messages, paused.line, paused.error) == (("m1",), 5, "no")


@pytest.mark.parametrize(("probes", "seconds"), [(0, 1), (1, 2), (3, 8), (5, 32), (6, 60), (10_000, 60)])
def test_pauses_grow_to_a_minute_and_are_only_lengthened(probes: int, seconds: int) -> None:
    for stage in ("pay", "ship", "pay.settle"):
        assert seconds * SECOND <= until_next_probe(probes, stage) <= seconds * SECOND * (1 + JITTER)


def test_stages_that_paused_together_are_not_probed_together() -> None:
    assert len({until_next_probe(3, f"stage-{n}") for n in range(10)}) > 5


def test_a_probe_in_vain_makes_way_for_the_next_one() -> None:
    pause = Pause(NOW, NOW + SECOND)
    breaker = with_probe(CircuitBreaker("pay", ("m1",), 5, "no", pause), pause, Probe(7, "m2"))
    assert breaker.pause is not None
    assert is_probe(breaker.pause, 7)
    assert not is_probe(breaker.pause, 8)
    after = with_failed_probe(breaker, breaker.pause, "still no", NOW + HOUR)
    assert after.pause == Pause(NOW, NOW + HOUR + until_next_probe(1, "pay"), 1)
    assert after.error == "still no"
    assert not is_probe(after.pause, 7)


def test_probes_are_taken_from_both_ends_of_what_waits() -> None:
    assert [next_end(Pause(NOW, NOW, probes)) for probes in range(4)] == ["oldest", "newest", "oldest", "newest"]


def test_a_day_of_probes_in_vain_and_they_count() -> None:
    pause = Pause(NOW, NOW)
    assert not counts_failures(pause, NOW + 24 * HOUR - 1)
    assert counts_failures(pause, NOW + 24 * HOUR)


def test_only_what_the_policy_itself_exhausted_is_taken_back_and_once() -> None:
    policy = Redelivery.exponential(2)
    assert is_provisional("exhausted", 3, policy)
    assert not is_provisional("exhausted", 4, policy)
    assert not is_provisional("hopeless", 3, policy)
    assert not is_provisional("refused", 3, policy)


def test_an_undecodable_message_is_taken_back_as_often_as_the_policy_allows_attempts() -> None:
    policy = Redelivery.exponential(2)
    assert [is_provisional("undecodable", failures, policy) for failures in (1, 2, 3, 4)] == [True, True, True, False]


def test_rows_hold_all_of_it() -> None:
    for breaker in (
        CircuitBreaker("pay"),
        CircuitBreaker("pay", ("m1", "m2"), 5, "no", Pause(NOW, NOW + 1)),
        CircuitBreaker("pay", ("m1", "m2"), 5, "no", Pause(NOW, NOW + 1, 3, Probe(7, "m2"))),
    ):
        assert breaker_of(list(values_of(breaker).values())) == breaker


@pytest.mark.parametrize("wrong", [1, -1, 2.5, True, "ten"])
def test_after_how_many_failures_is_checked_where_it_is_said(wrong: object) -> None:
    with pytest.raises(DeclarationError, match="pause_after must be a whole number"):
        App("shop", pause_after=wrong)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="pause_after must be a whole number"):
        App("shop").endpoint("pay", pause_after=wrong)  # type: ignore[arg-type]
