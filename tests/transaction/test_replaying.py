"""Dead letters that get new attempts: the same message under the same id, from a set that is frozen when asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.errors import StoreError
from stagepost.ports.dead_letters import Selection
from stagepost.ports.replays import Chunk, Period, Replay, Selections
from stagepost.recovery.rate_limiter import CHUNK_MAX
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, preview, run_replay

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
ALL = [Selection("all")]


@dataclass
class Order:
    id: str


@dataclass
class Turning:
    """Patience that moves the clock on; it ends after so many waits that took time."""

    clock: ManualClock
    waits_max: int = 1_000_000
    waited: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.waited.append(seconds)
            self.clock.advance(seconds)
        return len(self.waited) <= self.waits_max


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


@pytest.fixture
def died(app: App, harness: NewHarness, broken: list[str]) -> Callable[..., Harness]:
    """These orders become dead letters, and what broke them is mended. Gives the harness that ran them."""

    def die(*names: str) -> Harness:
        broken.extend(names)
        start(app, *names)
        worker = harness()
        worker.drain()
        broken.clear()
        return worker

    return die


def asked(app: App, worker: Harness, wanted: Selections = ALL, rate: float | None = None) -> Replay:
    replay = freeze(worker.access.session, wanted, clock=engine_of(app).clock, who="ada", rate=rate)
    assert replay is not None
    return replay


def worked_off(
    app: App, worker: Harness, replay: Replay, *, stop: Turning | None = None, rate: float | None = None
) -> list[Chunk]:
    clock = engine_of(app).clock
    assert isinstance(clock, ManualClock)
    return list(
        run_replay(
            QueueCommit(worker.access.session, clock, "cli@host:1"),
            replay,
            stop=stop or Turning(clock),
            who="bob",
            rate=rate,
        )
    )


def found(worker: Harness, replay: Replay) -> Replay:
    kept = worker.access.session.replays.find(replay.id)
    assert kept is not None
    return kept


def replayed_lines(worker: Harness, *names: str) -> dict[str, int]:
    return {name: [each.waypoint for each in worker.history(f"order:{name}")].count("replayed") for name in names}


def test_a_replayed_message_has_the_same_id_and_new_attempts(
    app: App, ledger: Ledger, died: Callable[..., Harness]
) -> None:
    worker = died("a")
    (letter,) = worker.dead_letters()
    replay = asked(app, worker)
    worked_off(app, worker, replay)
    assert worker.dead_letters() == []
    worker.drain()
    assert ledger.entries == ["a attempt 1"]
    history = worker.history("order:a")
    assert {each.message_id for each in history} == {letter.message_id}
    assert [each.waypoint for each in history][-4:] == ["dead", "replayed", "received", "committed"]
    replayed = history[-3]
    detail = f"by bob, replay {replay.id}"
    assert (replayed.node, replayed.detail, replayed.stage) == ("cli@host:1", detail, "pay")
    kept = found(worker, replay)
    assert (kept.who, kept.letters, kept.replayed, kept.left) == ("ada", 1, 1, 0)


def test_what_dies_again_is_a_dead_letter_again_with_the_full_number_of_attempts(
    app: App, died: Callable[..., Harness], broken: list[str]
) -> None:
    worker = died("a")
    broken.append("a")
    worked_off(app, worker, asked(app, worker))
    assert len(worker.drain()) == 2
    (letter,) = worker.dead_letters()
    assert (letter.failures, letter.deliveries) == (2, 4)


@pytest.mark.parametrize(
    ("by", "value", "replayed"),
    [("all", None, ["a", "b", "c"]), ("flow", "order:b", ["b"])],
)
def test_only_what_was_selected_is_replayed(
    app: App,
    ledger: Ledger,
    died: Callable[..., Harness],
    by: Literal["all", "flow"],
    value: str | None,
    replayed: list[str],
) -> None:
    worker = died("a", "b", "c")
    wanted = [Selection(by, value)]
    assert sum(each.count for each in preview(worker.access.session, wanted)) == len(replayed)
    worked_off(app, worker, asked(app, worker, wanted))
    worker.drain()
    assert sorted(ledger.entries) == [f"{name} attempt 1" for name in replayed]
    assert len(worker.dead_letters()) == 3 - len(replayed)


def test_what_died_in_a_period_is_replayed(app: App, died: Callable[..., Harness], harness: NewHarness) -> None:
    worker = died("a")
    clock = engine_of(app).clock
    assert isinstance(clock, ManualClock)
    clock.advance(3600)
    since = clock.now()
    died("b")
    worked_off(app, worker, asked(app, worker, [Period(since=since)]))
    assert [letter.flow_id for letter in worker.dead_letters()] == ["order:a"]


def test_one_kind_of_failure_is_replayed_by_its_group(app: App, inject: Inject, died: Callable[..., Harness]) -> None:
    inject("pay", b"no envelope")
    worker = died("a", "b")
    group = worker.access.session.dead_letters.groups()[0]
    assert group.count == 2
    worked_off(app, worker, asked(app, worker, [Selection("group", group.fingerprint)]))
    assert [letter.envelope for letter in worker.dead_letters()] == [b"no envelope"]


def test_the_set_is_the_one_that_was_asked_for(app: App, died: Callable[..., Harness]) -> None:
    worker = died("a")
    replay = asked(app, worker)
    died("b")
    worked_off(app, worker, replay)
    assert worked_off(app, worker, replay) == []
    assert [letter.flow_id for letter in worker.dead_letters()] == ["order:b"]


def test_what_dies_again_while_the_replay_runs_is_not_replayed_again(
    app: App, died: Callable[..., Harness], broken: list[str]
) -> None:
    worker = died("a", "b")
    broken.extend(["a", "b"])
    replay = asked(app, worker, rate=1)
    worked_off(app, worker, replay, stop=Turning(engine_of(app).clock, waits_max=0), rate=1)  # type: ignore[arg-type]
    worker.drain()
    worked_off(app, worker, replay)
    worker.drain()
    assert replayed_lines(worker, "a", "b") == {"a": 1, "b": 1}
    assert len(worker.dead_letters()) == 2


def test_nothing_is_kept_of_a_replay_without_letters(app: App, harness: NewHarness, broken: list[str]) -> None:
    session = harness().access.session
    assert freeze(session, ALL, clock=engine_of(app).clock, who="ada") is None
    assert session.replays.listed() == []
    assert preview(session, ALL) == []


def test_trying_out_keeps_and_changes_nothing(app: App, died: Callable[..., Harness]) -> None:
    worker = died("a", "b")
    (group,) = preview(worker.access.session, ALL)
    assert (group.count, group.stage) == (2, "pay")
    assert worker.access.session.replays.listed() == []
    assert len(worker.dead_letters()) == 2


@pytest.mark.longer_on_postgres
def test_many_are_replayed_in_chunks_each_of_which_commits(app: App, died: Callable[..., Harness]) -> None:
    worker = died(*(f"o{n}" for n in range(CHUNK_MAX + 5)))
    replay = asked(app, worker)
    session = worker.access.session
    clock = engine_of(app).clock
    assert isinstance(clock, ManualClock)
    chunks = run_replay(QueueCommit(session, clock, "cli@host:1"), replay, stop=Turning(clock), who="ada")
    assert len(next(chunks).letters) == CHUNK_MAX
    assert not session.is_begun
    assert len(worker.dead_letters()) == 5
    assert found(worker, replay).left == 5
    assert [len(each.letters) for each in chunks] == [5]
    assert worker.dead_letters() == []


def test_a_letter_that_somebody_else_took_meanwhile_is_gone_and_the_others_are_replayed(
    app: App, died: Callable[..., Harness]
) -> None:
    worker = died("a", "b", "c")
    replay = asked(app, worker)
    worked_off(app, worker, asked(app, worker, [Selection("flow", "order:b")]))
    (chunk,) = worked_off(app, worker, replay)
    assert (len(chunk.letters), chunk.gone) == (2, 1)
    assert (found(worker, replay).replayed, found(worker, replay).gone) == (2, 1)
    assert replayed_lines(worker, "a", "b", "c") == {"a": 1, "b": 1, "c": 1}


# The rate


def test_a_rate_is_kept_to_the_microsecond(app: App, died: Callable[..., Harness]) -> None:
    worker = died(*"abcdef")
    begin = engine_of(app).clock.now()
    stop = Turning(engine_of(app).clock)  # type: ignore[arg-type]
    worked_off(app, worker, asked(app, worker), stop=stop, rate=5)
    moments = sorted(
        each.at - begin for name in "abcdef" for each in worker.history(f"order:{name}") if each.waypoint == "replayed"
    )
    assert moments == [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]


def test_gone_letters_do_not_count_for_the_rate(app: App, died: Callable[..., Harness]) -> None:
    worker = died("a", "b", "c")
    replay = asked(app, worker)
    worked_off(app, worker, asked(app, worker))
    stop = Turning(engine_of(app).clock)  # type: ignore[arg-type]
    worked_off(app, worker, replay, stop=stop, rate=0.1)
    assert stop.waited == []
    assert found(worker, replay).gone == 3


# Broken off, and resumed


def test_who_is_told_to_stop_stops_between_two_chunks_and_another_goes_on(
    app: App, died: Callable[..., Harness]
) -> None:
    worker = died(*"abcde")
    replay = asked(app, worker)
    worked_off(app, worker, replay, stop=Turning(engine_of(app).clock, waits_max=2), rate=1)  # type: ignore[arg-type]
    assert (found(worker, replay).replayed, len(worker.dead_letters())) == (3, 2)
    worked_off(app, worker, found(worker, replay))
    assert (found(worker, replay).replayed, worker.dead_letters()) == (5, [])
    assert replayed_lines(worker, *"abcde") == dict.fromkeys("abcde", 1)


def test_a_chunk_that_could_not_be_written_is_still_to_be_done(
    app: App, died: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = died("a", "b")
    replay = asked(app, worker)

    def fail(*waypoints: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(worker.access.session.journal, "record", fail)
        with pytest.raises(StoreError):
            worked_off(app, worker, replay)
    assert not worker.access.session.is_begun
    assert (found(worker, replay).left, len(worker.dead_letters())) == (2, 2)
    worked_off(app, worker, replay)
    assert replayed_lines(worker, "a", "b") == {"a": 1, "b": 1}


@pytest.mark.longer_on_postgres
def test_several_work_off_one_replay_at_once_and_nothing_is_doubled_or_left(
    app: App, died: Callable[..., Harness]
) -> None:
    names = [f"o{n}" for n in range(60)]
    worker = died(*names)
    replay = asked(app, worker)
    together = threading.Barrier(3)

    class Ready:
        def wait(self, seconds: float) -> bool:
            return True

    def resume() -> Replay | None:
        """In chunks of one, and never waiting. Ends when all is done, whoever did it."""
        access = engine_of(app).access()
        try:
            together.wait()
            for _ in run_replay(QueueCommit(access.session, Rushing(), "cli"), replay, stop=Ready(), who="ada", rate=5):
                pass
            return access.session.replays.find(replay.id)
        finally:
            access.session.close()

    with ThreadPoolExecutor(3) as threads:
        ended = [each.result() for each in [threads.submit(resume) for _ in range(3)]]
    assert [each.left for each in ended if each is not None] == [0, 0, 0]
    assert (found(worker, replay).replayed, found(worker, replay).gone) == (60, 0)
    assert replayed_lines(worker, *names) == dict.fromkeys(names, 1)
    assert worker.dead_letters() == []
    assert len(worker.drain()) == 60


class Rushing(ManualClock):
    """Whoever asks finds that much time has passed."""

    def monotonic(self) -> float:
        self.advance(60)
        return super().monotonic()
