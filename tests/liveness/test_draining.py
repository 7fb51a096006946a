"""When a run that is to drain gives up stages that are paused."""

from __future__ import annotations

from stagepost.ports.queue import Pending
from stagepost.runtime.prefetch import Draining


def pending(stalled_probes: int | None) -> Pending:
    return Pending(False, False, 10**18, None, stalled_probes)


def test_a_stage_that_pauses_in_this_run_is_given_up_with_the_probe_that_makes_it_stalled() -> None:
    draining = Draining()
    assert not draining.is_stalled(pending(None))
    assert draining.is_stalled(pending(3))


def test_one_that_was_found_stalled_gets_one_probe_more() -> None:
    draining = Draining()
    assert not draining.is_stalled(pending(5))
    assert not draining.is_stalled(pending(None))
    assert not draining.is_stalled(pending(5))
    assert draining.is_stalled(pending(6))


def test_one_that_was_resumed_and_paused_anew_is_another_one() -> None:
    draining = Draining()
    assert not draining.is_stalled(pending(5))
    assert draining.is_stalled(pending(3))
