"""When a failed message is tried again: a pure decision."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost import (
    DeclarationError,
    HandlerError,
    IdConflict,
    IllegalCall,
    Redelivery,
    Refuse,
    StoreContention,
    TimeLimitExceeded,
    Undecodable,
    WorkerDied,
    WrongAddress,
)
from stagepost.recovery.redelivery import Again, Bury

ERROR = ValueError("no")

sane_policies = st.builds(
    Redelivery,
    redeliveries=st.integers(0, 60),
    first_seconds=st.just(0.0) | st.floats(0.001, 60),
    factor=st.floats(1, 10),
    cap_seconds=st.floats(60, 86_400),
    jitter=st.floats(0, 1),
)


def delays(policy: Redelivery) -> list[float]:
    """Seconds, as they are decided one failure after the other."""
    found: list[float] = []
    while isinstance(decision := policy.decide(len(found) + 1, ERROR, Random(0)), Again):
        found.append(decision.after / 1_000_000)
    return found


def horizon(policy: Redelivery) -> float:
    """The longest time between a message's first attempt and its last, in seconds, without the attempts themselves."""
    return sum(delays(replace(policy, jitter=0))) * (1 + policy.jitter)


def test_the_default_is_one_attempt_and_six_redeliveries_from_250_ms_doubling() -> None:
    assert delays(replace(Redelivery(), jitter=0)) == [0.25, 0.5, 1, 2, 4, 8]


def test_delays_grow_up_to_the_cap() -> None:
    assert delays(Redelivery(redeliveries=10, jitter=0)) == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_fixed_interval_is_one_call() -> None:
    assert delays(replace(Redelivery.fixed(), jitter=0)) == [60] * 100
    assert delays(replace(Redelivery.fixed(every_seconds=0.5, times=3), jitter=0)) == [0.5] * 3


def test_an_exponential_one_is_one_call() -> None:
    policy = Redelivery.exponential(4, first_seconds=1, factor=3, cap_seconds=10)
    assert delays(replace(policy, jitter=0)) == [1, 3, 9, 10]


def test_none_is_one_attempt() -> None:
    assert Redelivery.none().decide(1, ERROR, Random(0)) == Bury("exhausted")


@given(sane_policies, st.integers(0, 2**32))
def test_chance_only_lengthens_and_by_no_more_than_its_share(policy: Redelivery, seed: int) -> None:
    random = Random(seed)
    for failures in range(1, policy.redeliveries + 1):
        bare = min(policy.first_seconds * policy.factor ** (failures - 1), policy.cap_seconds)
        decision = policy.decide(failures, ERROR, random)
        assert isinstance(decision, Again)
        assert bare * 1_000_000 - 1 <= decision.after <= bare * (1 + policy.jitter) * 1_000_000 + 1


@given(sane_policies)
def test_there_are_exactly_as_many_redeliveries_as_the_policy_says(policy: Redelivery) -> None:
    assert len(delays(policy)) == policy.redeliveries


@given(sane_policies, st.integers(0, 2**32))
def test_the_horizon_is_the_longest_all_redeliveries_can_take(policy: Redelivery, seed: int) -> None:
    random = Random(seed)
    taken = [policy.decide(n, ERROR, random) for n in range(1, policy.redeliveries + 1)]
    total = sum(each.after for each in taken if isinstance(each, Again)) / 1_000_000
    # Each delay is rounded to whole microseconds, on both sides.
    assert total <= horizon(policy) + 2e-6 * policy.redeliveries


def test_the_horizon_of_the_default_is_known() -> None:
    assert horizon(Redelivery()) == pytest.approx(15.75 * 1.15)
    assert horizon(Redelivery.none()) == 0


@given(st.integers(1, 10**6))
def test_a_decision_is_the_same_for_the_same_chance(seed: int) -> None:
    assert Redelivery().decide(1, ERROR, Random(seed)) == Redelivery().decide(1, ERROR, Random(seed))


def test_a_policy_of_very_many_redeliveries_stays_at_its_cap() -> None:
    policy = Redelivery(redeliveries=10_000, jitter=0)
    assert policy.decide(9_999, ERROR, Random(0)) == Again(60_000_000)


def test_a_policy_that_grows_slowly_goes_on_growing() -> None:
    policy = Redelivery(redeliveries=200, factor=1.01, jitter=0)
    assert policy.decide(150, ERROR, Random(0)) == Again(round(250_000 * 1.01**149))


@pytest.mark.parametrize("factor", [1e5, 1e10, 1e300])
def test_a_policy_that_grows_fast_stays_at_its_cap_too(factor: float) -> None:
    policy = Redelivery(redeliveries=100, factor=factor, jitter=0)
    assert policy.decide(100, ERROR, Random(0)) == Again(60_000_000)
    assert horizon(policy) == pytest.approx(0.25 + 99 * 60)


# What another attempt cannot help


@pytest.mark.parametrize(
    "error",
    [HandlerError("x"), IllegalCall("x"), WrongAddress("x"), IdConflict("pay", "m1", "a", "b", flow_id="f1")],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_the_same_way_each_time_is_buried_at_once(error: Exception) -> None:
    assert Redelivery().decide(1, error, Random(0)) == Bury("hopeless")


def test_what_cannot_be_decoded_is_buried_at_once_and_says_so_unless_it_is_named_hopeless() -> None:
    assert Redelivery().decide(1, Undecodable("x"), Random(0)) == Bury("undecodable")
    assert Redelivery().with_hopeless(Undecodable).decide(1, Undecodable("x"), Random(0)) == Bury("hopeless")


def test_what_was_refused_is_buried_at_once_and_says_so() -> None:
    assert Redelivery().decide(1, Refuse("no"), Random(0)) == Bury("refused")
    assert Redelivery().with_hopeless(Refuse).decide(1, Refuse("no"), Random(0)) == Bury("refused")


@pytest.mark.parametrize(
    "error", [ERROR, SystemExit(1), MemoryError(), TimeLimitExceeded(), StoreContention("x"), WorkerDied("x")]
)
def test_all_else_may_go_well_the_next_time(error: BaseException) -> None:
    assert isinstance(Redelivery().decide(1, error, Random(0)), Again)


def test_types_named_hopeless_and_what_derives_from_them_are_buried_at_once() -> None:
    policy = Redelivery().with_hopeless(LookupError).with_hopeless(ZeroDivisionError, TypeError)
    for hopeless in (KeyError("x"), IndexError(), ZeroDivisionError(), TypeError()):
        assert policy.decide(1, hopeless, Random(0)) == Bury("hopeless")
    assert isinstance(policy.decide(1, ValueError(), Random(0)), Again)
    assert isinstance(Redelivery().decide(1, KeyError("x"), Random(0)), Again)


# Declaring

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"redeliveries": -1}, "Redelivery.redeliveries must be a whole number, 0 or more, not -1"),
    ({"first_seconds": -0.1}, "Redelivery.first_seconds must be 0 or more"),
    ({"first_seconds": math.inf}, "Redelivery.first_seconds must be 0 or more"),
    ({"first_seconds": math.nan}, "Redelivery.first_seconds must be 0 or more"),
    ({"factor": 0.5}, "Redelivery.factor must be 1 or more, not 0.5"),
    ({"factor": math.nan}, "Redelivery.factor must be 1 or more"),
    ({"first_seconds": 120}, "Redelivery.cap_seconds must be first_seconds or more"),
    ({"cap_seconds": math.inf}, "Redelivery.cap_seconds"),
    ({"jitter": -0.1}, "Redelivery.jitter must be between 0 and 1, not -0.1"),
    ({"jitter": 1.5}, "Redelivery.jitter must be between 0 and 1, not 1.5"),
    ({"hopeless": ("ValueError",)}, "Redelivery.hopeless takes exception types"),
    ({"hopeless": (ValueError("x"),)}, "Redelivery.hopeless takes exception types"),
    ({"hopeless": (int,)}, "Redelivery.hopeless takes exception types"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_declared(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Redelivery(**options)
    assert text in str(caught.value)


@pytest.mark.parametrize("options", [{"redeliveries": "6"}, {"first_seconds": None}, {"hopeless": ValueError}])
def test_a_policy_of_wrong_types_is_refused_as_a_declaration_error(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Redelivery(**options)


def test_half_a_redelivery_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DeclarationError):
        Redelivery(redeliveries=2.5)  # type: ignore[arg-type]
