"""What the database answers no to is nobody's failure: tried again, uncounted, and the handler only where it must.

A session that says no on cue stands in for a busy or absent database; all else is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from stagepost import (
    App,
    CommitUnknown,
    Context,
    Redelivery,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreUnavailable,
    Target,
)
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import ConnectionLost
from stagepost.ports.dead_letters import Selection
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import attempt_runner
from stagepost.testing import ManualClock
from stagepost.testing.harness import Unwatched
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.enqueueing import row_again
from stagepost.transaction.outcome import Abandoned, AnsweredWithFailure, Buried, Completed, Died, Outcome, Redelivered
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.settling import Settlement

if TYPE_CHECKING:
    from tests.conftest import Ledger

TEN_MINUTES = 600


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str


class Moody:
    """A session that raises what its script says, each time a verb is called; None lets it pass."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.script: dict[str, Iterator[Exception | None]] = {}
        self.accepted = MoodyPart(self, session.accepted)
        self.journal = MoodyPart(self, session.journal)

    def plan(self, verb: str, answers: Iterator[Exception | None]) -> None:
        self.script[verb] = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def begin(self, *, is_durable: bool = True) -> None:
        self.answer("begin")
        self._session.begin(is_durable=is_durable)

    def commit(self) -> None:
        self.answer("commit")
        self._session.commit()

    def answer(self, verb: str) -> None:
        answer = next(self.script.get(verb, iter(())), None)
        if isinstance(answer, Stood):
            self._session.commit()
        elif isinstance(answer, Vanished):
            self._session.rollback()
        if answer is not None:
            raise answer


class MoodyPart:
    """A part of that session: it answers like the session itself."""

    def __init__(self, session: Moody, part: Any) -> None:
        self._session = session
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def accept(self, acceptances: Any, **options: Any) -> Any:
        self._session.answer("accept")
        return self._part.accept(acceptances, **options)

    def record(self, waypoints: Any) -> None:
        self._session.answer("record")
        self._part.record(waypoints)


class Stood(CommitUnknown):
    """The commit stood; only its answer was lost."""


class Vanished(CommitUnknown):
    """The commit was lost with its answer."""


class Waiting:
    """Patience that moves the clock instead of waiting, for as many pauses as it is told."""

    def __init__(self, clock: ManualClock, pauses: int) -> None:
        self._clock = clock
        self._pauses = pauses
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self._clock.advance(seconds)
        return len(self.waited) <= self._pauses


def call_back(claim: Claim, callbacks: Sequence[Callable[[], object]]) -> None:
    for each in callbacks:
        each()


class Worker:
    def __init__(self, app: App, clock: ManualClock) -> None:
        self.session = Moody(engine_of(app).access().session)
        self.access: Access = Access(cast("Session", self.session), clock)
        self.patience = Waiting(clock, 10_000)
        self._app = app

    def claim(self) -> Claim:
        (claim,) = self.access.claimer.claim(list(engine_of(self._app).stages()), 1, "w1", "test")
        return claim

    def run(self, claim: Claim) -> Outcome:
        transaction: AttemptRunner = attempt_runner(
            engine_of(self._app),
            self.access,
            node="test",
            monitor=Unwatched(),
            stop=self.patience,
            after_commit=call_back,
        )
        return transaction.run(claim)


@pytest.fixture
def worker(app: App, clock: ManualClock) -> Iterator[Worker]:
    worker = Worker(app, clock)
    yield worker
    worker.session.close()


def states(worker: Worker) -> list[str]:
    return [each.waypoint for each in worker.access.session.journal.history("flow")]


def no(error: type[StoreError], times: int) -> Iterator[Exception | None]:
    return iter([error("not now")] * times)


NOES = [StoreContention, StoreUnavailable]


@pytest.fixture
def runs(app: App, ledger: Ledger) -> list[str]:
    """The runs of two handlers: ``writes`` touches the database, ``computes`` does not. Both send."""
    ran: list[str] = []
    other: Target[Receipt, None] = app.remote("other", Receipt)

    @app.endpoint("writes")
    def writes(ctx: Context, order: Order) -> None:
        ran.append(f"writes {ctx.attempt}")
        ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id))

    @app.endpoint("computes")
    def computes(ctx: Context, order: Order) -> None:
        ran.append(f"computes {ctx.attempt}")
        ctx.send(other, Receipt(order.id))

    return ran


def begun(app: App, worker: Worker, name: str) -> Claim:
    app.start(app.target(name), Order("o1"), flow_id="flow")
    return worker.claim()


@pytest.mark.parametrize("error", NOES)
def test_a_handler_that_was_not_let_in_runs_again_uncounted(
    app: App, worker: Worker, runs: list[str], ledger: Ledger, error: type[StoreError]
) -> None:
    claim = begun(app, worker, "writes")
    worker.session.plan("begin", no(error, 3))
    assert isinstance(worker.run(claim), Completed)
    assert runs == ["writes 1"] * 4
    assert ledger.entries == ["o1"]
    assert states(worker) == ["accepted", "received", "committed", "sent"]


@pytest.mark.parametrize("error", NOES)
def test_a_handler_whose_commit_was_refused_runs_again_where_it_wrote(
    app: App, worker: Worker, runs: list[str], ledger: Ledger, error: type[StoreError]
) -> None:
    claim = begun(app, worker, "writes")
    worker.session.plan("commit", no(error, 2))
    assert isinstance(worker.run(claim), Completed)
    assert runs == ["writes 1"] * 3
    assert ledger.entries == ["o1"]
    assert states(worker) == ["accepted", "received", "committed", "sent"]


@pytest.mark.parametrize("verb", ["begin", "record", "commit"])
@pytest.mark.parametrize("error", NOES)
def test_a_handler_that_only_computed_does_not_run_again(
    app: App, worker: Worker, runs: list[str], error: type[StoreError], verb: str
) -> None:
    claim = begun(app, worker, "computes")
    worker.session.plan(verb, no(error, 3))
    assert isinstance(worker.run(claim), Completed)
    assert runs == ["computes 1"]
    assert states(worker) == ["accepted", "received", "committed", "sent"]
    assert worker.access.claimer.pending(["other"]).ready


def test_it_is_tried_again_at_once_and_then_after_pauses_that_grow(app: App, worker: Worker, runs: list[str]) -> None:
    claim = begun(app, worker, "computes")
    worker.session.plan("begin", no(StoreContention, 9))
    worker.run(claim)
    assert worker.patience.waited == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.parametrize("name", ["writes", "computes"])
def test_contention_of_more_than_ten_minutes_is_a_failure_and_counted(
    app: App, worker: Worker, runs: list[str], clock: ManualClock, ledger: Ledger, name: str
) -> None:
    claim = begun(app, worker, name)
    begin = clock.monotonic()

    def until_it_is_counted() -> Iterator[Exception | None]:
        while clock.monotonic() - begin <= TEN_MINUTES:
            yield StoreContention("somebody holds the file")
        yield StoreContention("and still does")

    worker.session.plan("begin", until_it_is_counted())
    outcome = worker.run(claim)
    assert isinstance(outcome, Redelivered)
    assert isinstance(outcome.error, StoreContention)
    assert TEN_MINUTES < clock.monotonic() - begin <= TEN_MINUTES + 4
    assert states(worker) == ["accepted", "received", "failed", "delayed"]
    assert ledger.entries == []
    clock.advance(1)
    assert worker.claim().failures == 1


def test_contention_of_ten_minutes_is_not_yet_a_failure(
    app: App, worker: Worker, runs: list[str], clock: ManualClock
) -> None:
    claim = begun(app, worker, "computes")
    begin = clock.monotonic()

    def nearly() -> Iterator[Exception | None]:
        while clock.monotonic() - begin < TEN_MINUTES - 2:
            yield StoreContention("somebody holds the file")

    worker.session.plan("begin", nearly())
    assert isinstance(worker.run(claim), Completed)


def test_a_database_that_is_down_is_waited_for_however_long_it_takes(
    app: App, worker: Worker, runs: list[str], clock: ManualClock
) -> None:
    claim = begun(app, worker, "computes")
    worker.session.plan("begin", no(StoreUnavailable, 2_000))
    assert isinstance(worker.run(claim), Completed)
    assert clock.monotonic() > 3_000
    assert runs == ["computes 1"]


def test_a_database_without_room_for_anything_is_waited_for_however_long_it_takes(
    app: App, worker: Worker, runs: list[str], clock: ManualClock, ledger: Ledger
) -> None:
    """Not even for the failure that it would be after ten minutes, had only this message no room."""
    claim = begun(app, worker, "writes")
    worker.session.plan("begin", no(StoreExhausted, 2_000))
    assert isinstance(worker.run(claim), Completed)
    assert clock.monotonic() > 3 * TEN_MINUTES
    assert ledger.entries == ["o1"]
    assert states(worker) == ["accepted", "received", "committed", "sent"]


@pytest.mark.parametrize("error", NOES)
def test_one_who_is_told_to_stop_while_waiting_leaves_the_message_as_it_was(
    app: App, worker: Worker, runs: list[str], clock: ManualClock, error: type[StoreError]
) -> None:
    claim = begun(app, worker, "writes")
    worker.session.plan("begin", no(error, 100))
    worker.patience = Waiting(clock, 2)
    assert isinstance(worker.run(claim), Abandoned)
    assert worker.access.session.queue.holds(claim)
    assert not worker.access.session.is_begun
    assert states(worker) == ["accepted", "received"]


def test_contention_that_the_handler_swallows_is_contention_still(app: App, worker: Worker, ledger: Ledger) -> None:
    swallowed: list[str] = []

    @app.endpoint("careless")
    def careless(ctx: Context, order: Order) -> None:
        for text in ("first", "second"):
            try:
                ledger.write(ctx, text)
            except StoreContention:
                swallowed.append(text)

    claim = begun(app, worker, "careless")
    worker.session.plan("begin", no(StoreContention, 1))
    assert isinstance(worker.run(claim), Completed)
    # Once it was told no, it is told no for the rest of its run: what it wrote then would be half of it.
    assert swallowed == ["first", "second"]
    assert ledger.entries == ["first", "second"]


@pytest.mark.parametrize("error", NOES)
def test_a_busy_error_of_the_handlers_own_is_a_failure(app: App, worker: Worker, error: type[StoreError]) -> None:
    @app.endpoint("own")
    def own(ctx: Context, order: Order) -> None:
        raise error("another database, of the handler's own")

    outcome = worker.run(begun(app, worker, "own"))
    assert isinstance(outcome, Redelivered)
    assert states(worker) == ["accepted", "received", "failed", "delayed"]


@pytest.mark.parametrize("error", NOES)
def test_a_no_to_what_stagepost_writes_for_the_handler_is_uncounted(
    app: App, worker: Worker, error: type[StoreError]
) -> None:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("starts")
    def starts(ctx: Context, order: Order) -> None:
        with ctx.initiate() as out:
            out.send(other, order, flow_id="child")

    claim = begun(app, worker, "starts")
    worker.session.plan("accept", no(error, 1))
    assert isinstance(worker.run(claim), Completed)
    assert "failed" not in states(worker)


@pytest.mark.parametrize("error", NOES)
@pytest.mark.parametrize("verb", ["begin", "commit"])
def test_a_failure_that_cannot_be_written_yet_is_written_later_without_another_run(
    app: App, worker: Worker, ledger: Ledger, error: type[StoreError], verb: str
) -> None:
    ran: list[int] = []

    @app.endpoint("fails", redelivery=Redelivery.none())
    def fails(ctx: Context, order: Order) -> None:
        ran.append(ctx.attempt)
        raise ValueError(order.id)

    claim = begun(app, worker, "fails")
    worker.session.plan(verb, no(error, 3))
    assert isinstance(worker.run(claim), Buried)
    assert ran == [1]
    assert states(worker) == ["accepted", "received", "failed", "dead"]


# The answer to a commit was lost: the row tells what became of it


@pytest.mark.parametrize("name", ["writes", "computes"])
def test_a_commit_that_stood_without_its_answer_is_found_to_have_stood(
    app: App, worker: Worker, runs: list[str], ledger: Ledger, name: str
) -> None:
    claim = begun(app, worker, name)
    worker.session.plan("commit", iter([Stood("connection lost")]))
    assert isinstance(worker.run(claim), Completed)
    assert runs == [f"{name} 1"]
    assert ledger.entries == (["o1"] if name == "writes" else [])
    assert states(worker) == ["accepted", "received", "committed", "sent"]
    assert len(worker.access.claimer.claim(["other"], 10, "w2", "test")) == 1


@pytest.mark.parametrize("name", ["writes", "computes"])
def test_a_commit_that_was_lost_with_its_answer_is_done_again(
    app: App, worker: Worker, runs: list[str], ledger: Ledger, name: str
) -> None:
    claim = begun(app, worker, name)
    worker.session.plan("commit", iter([Vanished("connection lost"), Vanished("again")]))
    assert isinstance(worker.run(claim), Completed)
    assert runs == (["writes 1"] * 3 if name == "writes" else ["computes 1"])
    assert ledger.entries == (["o1"] if name == "writes" else [])
    assert states(worker) == ["accepted", "received", "committed", "sent"]
    assert len(worker.access.claimer.claim(["other"], 10, "w2", "test")) == 1


@pytest.mark.parametrize("answer", [Stood, Vanished])
def test_a_failure_whose_commit_had_no_answer_is_counted_once(
    app: App, worker: Worker, clock: ManualClock, answer: type[CommitUnknown]
) -> None:
    @app.endpoint("fails")
    def fails(ctx: Context, order: Order) -> None:
        raise ValueError(order.id)

    claim = begun(app, worker, "fails")
    worker.session.plan("commit", iter([answer("connection lost")]))
    assert isinstance(worker.run(claim), Redelivered)
    assert states(worker) == ["accepted", "received", "failed", "delayed"]
    clock.advance(1)
    assert worker.claim().failures == 1


@pytest.mark.parametrize("answer", [Stood, Vanished])
def test_a_reply_of_fail_with_whose_commit_had_no_answer_is_sent_once(
    app: App, worker: Worker, ledger: Ledger, answer: type[CommitUnknown]
) -> None:
    ran: list[int] = []
    done: Target[Receipt, None] = app.remote("done", Receipt)

    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        ran.append(1)
        ledger.write(ctx, "never")
        ctx.fail_with(Receipt("no funds"))

    app.start(bank, Order("o1"), flow_id="flow", reply_to=done)
    claim = worker.claim()
    worker.session.plan("commit", iter([answer("connection lost")]))
    assert isinstance(worker.run(claim), AnsweredWithFailure)
    assert ran == [1]
    assert ledger.entries == []
    assert len(worker.access.claimer.claim(["done"], 10, "w2", "test")) == 1


def test_a_commit_that_the_database_refuses_for_good_is_a_failure_of_the_attempt(
    app: App, worker: Worker, runs: list[str], ledger: Ledger
) -> None:
    """A deferred constraint of the user's tables is checked only by the commit."""
    claim = begun(app, worker, "writes")
    worker.session.plan("commit", iter([StoreError("FOREIGN KEY constraint failed")]))
    assert isinstance(worker.run(claim), Redelivered)
    assert ledger.entries == []
    assert states(worker) == ["accepted", "received", "failed", "delayed"]


@pytest.mark.parametrize(("answer", "is_ours"), [(Stood, True), (Vanished, False)])
def test_a_claim_whose_commit_had_no_answer_is_ours_where_its_row_says_so(
    app: App, worker: Worker, answer: type[CommitUnknown], *, is_ours: bool
) -> None:
    """Forgotten, it would stay claimed for as long as its worker lives."""

    @app.endpoint("computes")
    def computes(ctx: Context, order: Order) -> None: ...

    app.start(computes, Order("o1"), flow_id="flow")
    worker.session.plan("commit", iter([answer("connection lost")]))
    claims = worker.access.claimer.claim(["computes"], 10, "w1", "test")
    assert [each.flow_id for each in claims] == (["flow"] if is_ours else [])
    assert worker.access.session.queue.owned("w1") == claims
    if not is_ours:
        claims = worker.access.claimer.claim(["computes"], 10, "w2", "test")
    assert isinstance(worker.run(claims[0]), Completed)


@pytest.mark.parametrize(("answer", "is_ours"), [(Stood, True), (Vanished, False)])
def test_a_suspect_whose_claim_had_no_answer_is_ours_where_its_row_says_so(
    app: App, worker: Worker, clock: ManualClock, answer: type[CommitUnknown], *, is_ours: bool
) -> None:
    @app.endpoint("computes")
    def computes(ctx: Context, order: Order) -> None: ...

    app.start(computes, Order("o1"), flow_id="flow")
    claimer, queue = worker.access.claimer, worker.access.session.queue
    claim = worker.claim()
    worker.session.begin()
    assert queue.remove(claim)
    queue.enqueue([row_again(claim, clock.now(), 0, 1)])
    worker.session.commit()
    worker.session.plan("commit", iter([answer("connection lost")]))
    suspect = claimer.claim_suspect(["computes"], "w1", "test")
    assert queue.owned("w1") == ([suspect] if suspect else [])
    assert (suspect is not None) is is_ours


# A connection that ended without a word: a statement of the message's own may have crashed its backend


def lost_again_and_again(worker: Worker, clock: ManualClock, claim: Claim) -> list[Outcome]:
    """Three connections, and then one each time it runs alone, until it does not come again."""
    outcomes: list[Outcome] = []
    next_claim: Claim | None = claim
    while next_claim is not None:
        worker.session.plan("commit", no(ConnectionLost, 3 if next_claim.deaths == 0 else 1))
        outcomes.append(worker.run(next_claim))
        clock.advance(100)
        next_claim = worker.access.claimer.claim_suspect(["writes"], "w1", "test")
    return outcomes


def test_a_message_under_which_connections_end_without_a_word_runs_alone_and_then_is_a_dead_letter(
    app: App, worker: Worker, runs: list[str], ledger: Ledger, clock: ManualClock
) -> None:
    outcomes = lost_again_and_again(worker, clock, begun(app, worker, "writes"))
    assert [type(each) for each in outcomes] == [Died, Died, Died, Buried]
    assert runs == ["writes 1"] * 3 + ["writes 2", "writes 3", "writes 4"]
    (kept,) = worker.access.session.dead_letters.select(Selection("all"))
    letter = kept.letter
    assert (letter.reason, letter.failures, letter.deaths) == ("worker-died", 0, 4)
    assert "without a message during its own statements, for the 3. time" in letter.summary
    assert ledger.entries == []


def test_a_message_that_is_beside_it_is_not_blamed(app: App, worker: Worker, runs: list[str], ledger: Ledger) -> None:
    """Its connections end with the server's farewell; and twice in a network that fails is no suspicion either."""
    claim = begun(app, worker, "writes")
    told: list[Exception | None] = [StoreUnavailable("terminating connection because of crash of another process")] * 9
    worker.session.plan("commit", iter([*told, ConnectionLost("cut"), ConnectionLost("cut")]))
    assert isinstance(worker.run(claim), Completed)
    assert ledger.entries == ["o1"]
    assert states(worker) == ["accepted", "received", "committed", "sent"]


def test_a_settlement_that_fails_leaves_no_transaction_open(app: App, worker: Worker, clock: ManualClock) -> None:
    """Nor the writer lock to itself: those who clean up after the dead settle outside any attempt."""

    @app.endpoint("computes")
    def computes(ctx: Context, order: Order) -> None: ...

    claim = begun(app, worker, "computes")
    session = cast("Session", worker.session)
    settlement = Settlement(QueueCommit(session, clock, "test", engine_of(app).listener))
    worker.session.plan("record", iter([StoreUnavailable("disk full")]))
    with pytest.raises(StoreUnavailable):
        settlement.settle(engine_of(app).stages()["computes"], claim, Died(0, "its process died"))
    assert not worker.session.is_open
    settlement.settle(engine_of(app).stages()["computes"], claim, Died(0, "its process died"))
    assert states(worker) == ["accepted", "received", "died", "delayed"]
