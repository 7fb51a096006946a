"""The library is broken on purpose, one guarantee at a time, and the judgement of the fault tests finds each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.books import Books
from tests.faults.sabotage import SABOTAGES
from tests.faults.scenarios import (
    behind_our_back,
    forked_and_killed,
    initiation_repeated,
    killed_at_a_step,
    paused_in_its_handler,
    slow,
    stopped_in_its_handler,
    stuck,
)
from tests.faults.worker_fleet import WorkerFleet

Scenario = Callable[[Books, WorkerFleet, Path], list[str]]

# The sabotage, the scenario that it is tried in, and the kind of problem, or the kinds, of which it must cause one.
CONTROLS: dict[str, tuple[Scenario, str]] = {
    "no-fence": (paused_in_its_handler, "doubled"),
    "early-acknowledge": (partial(killed_at_a_step, step="handled", occurrence=7), "lost"),
    "commit-before-recording": (partial(killed_at_a_step, step="recorded", occurrence=7), "lost"),
    "no-transaction": (partial(killed_at_a_step, step="handled", occurrence=7), "lost"),
    "random-ids": (partial(killed_at_a_step, step="committed", occurrence=7), "id"),
    "deaths-are-failures": (partial(killed_at_a_step, step="handled", occurrence=7), "failed"),
    "nothing-accepted": (lambda books, fleet, _: initiation_repeated(books, fleet), "doubled"),
    "time-limits-are-deaths": (partial(stuck, fault="stuck-once"), "died"),
    "abandoned-are-deaths": (stopped_in_its_handler, "died"),
    # What it runs is taken from it; and where its lock file is removed, it stops: whichever comes first.
    "living-look-dead": (partial(slow, holds_the_lock=False), "died or ended"),
    "dead-look-alive": (forked_and_killed, "left"),
    "no-guard": (lambda books, fleet, _: behind_our_back(books, fleet, "late-hide-a-commit"), "unexpected"),
}


# Of the modes with two databases, each in one of them.
CONTROLS_IN_TWO: dict[str, tuple[str, Scenario, str]] = {
    "no-inbox": ("postgres-outbox", partial(killed_at_a_step, step="committed", occurrence=7), "doubled"),
    "queue-before-data": ("sqlite-outbox", partial(killed_at_a_step, step="confirmed", occurrence=7), "lost"),
    "no-decision": ("postgres-two_phase", partial(killed_at_a_step, step="prepared", occurrence=7), "lost"),
    "nobody-settles": ("postgres-two_phase", partial(killed_at_a_step, step="decided", occurrence=7), "prepared"),
}


def test_every_sabotage_has_a_control() -> None:
    assert {*CONTROLS, *CONTROLS_IN_TWO} == SABOTAGES.keys()


# One of each kind of problem; the others with ``make test-more``.
SAMPLED = {"no-fence", "early-acknowledge", "random-ids", "no-inbox"}
# What PostgreSQL keeps in a way of its own; the others with ``make soak``. How its connection is guarded is tried in
# ``tests/transaction``.
KEPT_BY_POSTGRES = {"no-fence", "nothing-accepted", "living-look-dead"}


@pytest.mark.parametrize(
    ("store", "name"),
    [
        *(pytest.param("sqlite", name, marks=[] if name in SAMPLED else pytest.mark.more) for name in CONTROLS),
        *(
            pytest.param(store, name, marks=[] if name in SAMPLED else pytest.mark.more)
            for name, (store, _, _) in CONTROLS_IN_TWO.items()
        ),
        *(
            pytest.param("postgres", name, marks=pytest.mark.more if name in KEPT_BY_POSTGRES else pytest.mark.soak)
            for name in CONTROLS
            if name != "no-guard"
        ),
    ],
)
def test_the_harness_finds_what_is_broken_on_purpose(
    name: str, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    *_, scenario, kind = CONTROLS_IN_TWO.get(name) or CONTROLS[name]
    fleet.settings["sabotage"] = name
    # A sound library needs a second or two in these scenarios. A sabotaged one may never finish.
    fleet.standstill_seconds = 10
    problems = scenario(books, fleet, tmp_path)
    assert set(kind.split(" or ")) & {each.partition(":")[0] for each in problems}
