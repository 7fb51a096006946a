"""Dead letters that get new attempts: the same message under the same id, from a set that is frozen when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest

from stagepost import App, Context, Redelivery
from stagepost.recovery.letters import Selection
from stagepost.testing import Harness
from stagepost.transaction.replaying import CHUNK, replay, select_ids

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


@pytest.fixture
def broken(app: App, ledger: Ledger) -> list[str]:
    """Orders that ``pay`` cannot handle, for as long as they are in this list."""
    names: list[str] = []

    @app.endpoint("pay", redelivery=Redelivery(redeliveries=1, jitter=0))
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"{order.id} attempt {ctx.attempt}")
        if order.id in names:
            raise ValueError(order.id)

    return names


def start(app: App, *names: str) -> None:
    for name in names:
        app.start(app.target("pay"), Order(name), flow_id=f"order:{name}")


def replay_all(app: App, worker: Harness, ids: list[int]) -> list[int]:
    session, transport = worker.access.session, worker.access.transport
    return list(replay(session, transport, ids, clock=app.clock, node="cli@host:1", who="ada"))


def all_ids(worker: Harness) -> list[int]:
    return select_ids(worker.access.session, Selection("all"))


def test_a_replayed_message_has_the_same_id_and_new_attempts(
    app: App, harness: NewHarness, ledger: Ledger, broken: list[str]
) -> None:
    broken.append("a")
    start(app, "a")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    broken.clear()
    assert replay_all(app, worker, all_ids(worker)) == [1]
    assert worker.dead_letters() == []
    worker.drain()
    assert ledger.entries == ["a attempt 1"]
    history = worker.history("order:a")
    assert {each.message_id for each in history} == {letter.message_id}
    assert [each.waypoint for each in history][-4:] == ["dead", "replayed", "received", "committed"]
    replayed = history[-3]
    assert (replayed.node, replayed.detail, replayed.stage) == ("cli@host:1", "by ada", "pay")


def test_what_dies_again_is_a_dead_letter_again_with_the_full_number_of_attempts(
    app: App, harness: NewHarness, broken: list[str]
) -> None:
    broken.append("a")
    start(app, "a")
    worker = harness()
    worker.drain()
    replay_all(app, worker, all_ids(worker))
    assert len(worker.drain()) == 2
    (letter,) = worker.dead_letters()
    assert (letter.failures, letter.deliveries) == (2, 4)


@pytest.mark.parametrize(
    ("by", "value", "replayed"),
    [("all", None, ["a", "b", "c"]), ("flow", "order:b", ["b"]), ("message", "order:a", []), ("group", "nothing", [])],
)
def test_only_what_was_selected_is_replayed(
    app: App,
    harness: NewHarness,
    ledger: Ledger,
    broken: list[str],
    by: Literal["all", "flow", "message", "group"],
    value: str | None,
    replayed: list[str],
) -> None:
    broken.extend(["a", "b", "c"])
    start(app, "a", "b", "c")
    worker = harness()
    worker.drain()
    broken.clear()
    replay_all(app, worker, select_ids(worker.access.session, Selection(by, value)))
    worker.drain()
    assert sorted(ledger.entries) == [f"{name} attempt 1" for name in replayed]
    assert len(worker.dead_letters()) == 3 - len(replayed)


def test_one_kind_of_failure_is_replayed_by_its_group(
    app: App, harness: NewHarness, inject: Inject, broken: list[str]
) -> None:
    broken.extend(["a", "b"])
    start(app, "a", "b")
    inject("pay", b"no envelope")
    worker = harness()
    worker.drain()
    group = worker.access.session.reader.letter_groups()[0]
    assert group.count == 2
    ids = select_ids(worker.access.session, Selection("group", group.fingerprint))
    assert replay_all(app, worker, ids) == [2]
    assert [letter.envelope for letter in worker.dead_letters()] == [b"no envelope"]


def test_the_set_is_the_one_that_was_asked_for(app: App, harness: NewHarness, broken: list[str]) -> None:
    broken.extend(["a", "b"])
    start(app, "a")
    worker = harness()
    worker.drain()
    ids = all_ids(worker)
    start(app, "b")
    worker.drain()
    assert replay_all(app, worker, ids) == [1]
    # Resumed with the same ids, it finds them gone.
    assert replay_all(app, worker, ids) == [0]
    assert [letter.flow_id for letter in worker.dead_letters()] == ["order:b"]


def test_many_are_replayed_in_chunks_each_of_which_commits(app: App, harness: NewHarness, broken: list[str]) -> None:
    names = [f"o{n}" for n in range(CHUNK + 5)]
    broken.extend(names)
    start(app, *names)
    worker = harness()
    worker.drain()
    ids = all_ids(worker)
    replaying = replay(
        worker.access.session, worker.access.transport, ids, clock=app.clock, node="cli@host:1", who="ada"
    )
    assert next(replaying) == CHUNK
    assert not worker.access.session.is_open
    assert len(worker.dead_letters()) == 5
    assert list(replaying) == [5]
    assert worker.dead_letters() == []
