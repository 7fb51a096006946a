"""Stages whose data is a document: each effect exactly once, wherever an attempt ends, pauses or is overtaken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, DeclarationError, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreRefused, StoreUnavailable
from stagepost.ports.dead_letters import Selection
from stagepost.ports.documents import DocumentStore, StoredDocument
from stagepost.runtime.assembly import queue_commit_of
from stagepost.store.document import MemoryDocuments, in_document
from stagepost.store.document.redis import RedisDocuments
from stagepost.testing import Harness, ManualClock, crash_everywhere
from stagepost.transaction.documents import join
from stagepost.transaction.outcome import Buried, Completed, Died, Duplicate, Lost, Returned
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Halt, Step
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.conftest import Ledger
    from tests.servers.redis import RedisServer

KEY = "account:7"


@dataclass
class Booking:
    account: int
    cents: int


@dataclass
class Booked:
    cents: int


class Bank:
    """An app with one stage that books into documents, and one that writes each booking into the ledger."""

    def __init__(self, app: App, ledger: Ledger, documents: DocumentStore, ids_max: int = 100) -> None:
        self.app, self.ledger, self.documents = app, ledger, documents
        self.handled = 0

        @app.endpoint("accounts.book")
        @in_document(documents, key="account:{account}", ids="meta.processed", ids_max=ids_max)
        def book(ctx: Context, booking: Booking) -> None:
            self.handled += 1
            account = ctx.document
            account["cents"] = account.get("cents", 0) + booking.cents
            ctx.send(note, Booked(booking.cents))

        @app.endpoint("ledger.note")
        def note(ctx: Context, booked: Booked) -> None:
            ledger.write(ctx, str(booked.cents))

    def book(self, cents: int) -> None:
        self.app.start(self.app.target("accounts.book"), Booking(7, cents), flow_id=f"booking:{cents}")

    @property
    def content(self) -> dict[str, Any]:
        body = self.documents.read(KEY).body
        return json.loads(body) if body else {}

    @property
    def ids(self) -> dict[str, Any]:
        ids: dict[str, Any] = self.content.get("meta", {}).get("processed", {})
        return ids

    @property
    def books(self) -> tuple[int, list[str], dict[str, bytes]]:
        """The balance, the ledger and the lists that are left."""
        return self.content.get("cents", 0), sorted(self.ledger.entries), dict(self.documents.lists(KEY))

    def on(self, step: Step, call: Callable[[], object], *, occurrence: int = 1) -> None:
        """Call something once, when an attempt of ``accounts.book`` passes the step."""
        passings = Counter[Step]()

        def listen(current: Step, claim: Claim) -> None:
            if claim.stage == "accounts.book":
                passings[current] += 1
                if current is step and passings[current] == occurrence:
                    call()

        engine_of(self.app).listener = listen

    def take_over(self, owner: str) -> None:
        """Let the messages of an owner come again, as a takeover does."""
        engine_of(self.app).listener = lambda step, claim: None
        with closing(Harness(self.app, owner="takeover")) as harness:
            queue_commit = queue_commit_of(engine_of(self.app), harness.access, harness.node)
            for claim in harness.access.session.queue.owned(owner):
                Settlement(queue_commit).settle(engine_of(self.app).stages()[claim.stage], claim, Died(0, "test"))


@pytest.fixture(params=["memory", "redis"])
def documents(request: pytest.FixtureRequest) -> DocumentStore:
    if request.param == "memory":
        return MemoryDocuments()
    server: RedisServer = request.getfixturevalue("redis_server")
    server.clear()
    return RedisDocuments(server.url)


@pytest.fixture
def new_database(new_sqlite: Callable[[], str]) -> Callable[[], str]:
    return new_sqlite


@pytest.fixture
def bank(app: App, ledger: Ledger, documents: DocumentStore) -> Bank:
    return Bank(app, ledger, documents)


@pytest.fixture
def harness(harness_of: Callable[..., Harness]) -> Callable[..., Harness]:
    return harness_of


def halt() -> None:
    raise Halt


def crash(bank: Bank, step: Step, occurrence: int = 1) -> None:
    """Run until an attempt of ``accounts.book`` passes the step, and leave its messages to another owner."""
    bank.on(step, halt, occurrence=occurrence)
    victim = Harness(bank.app, owner="victim")
    try:
        victim.drain()
    except Halt:
        victim.access.rollback()
    else:
        raise AssertionError(f"no attempt passed {step}")
    finally:
        victim.transaction.close()
        victim.access.close()
    bank.take_over("victim")


def test_a_message_changes_its_document_and_sends_once(bank: Bank, harness: Callable[..., Harness]) -> None:
    for cents in (1, 2, 4):
        bank.book(cents)
    harness(bank.app).drain()
    assert bank.books == (7, ["1", "2", "4"], {})
    assert len(bank.ids) == 3
    assert set(bank.content) == {"cents", "meta"}


def test_the_balance_and_what_is_sent_are_exact_wherever_the_process_dies(
    new_app: Callable[[], App], ledger_of: Callable[[App], Ledger]
) -> None:
    banks: dict[int, Bank] = {}

    def make_app() -> App:
        app = new_app()
        banks[id(app)] = Bank(app, ledger_of(app), MemoryDocuments())
        return app

    def scenario(app: App) -> None:
        for cents in (1, 2):
            banks[id(app)].book(cents)

    found = crash_everywhere(make_app, scenario, lambda app: banks[id(app)].books[:2])
    assert [str(each) for each in found if not each.is_exactly_once] == []
    assert found[0].expected == (3, ["1", "2"])
    assert {Step.LISTED, Step.WRITTEN, Step.COMMITTING} <= {each.step for each in found}


@pytest.mark.parametrize(
    "step", [Step.CLAIMED, Step.HANDLED, Step.LISTED, Step.WRITTEN, Step.COMMITTING, Step.COMMITTED]
)
def test_the_next_owner_finishes_what_a_dead_one_began(step: Step, bank: Bank, harness: Callable[..., Harness]) -> None:
    bank.book(1)
    crash(bank, step)
    harness(bank.app).drain()
    cents, entries, lists = bank.books
    assert (cents, entries) == (1, ["1"])
    # The commit stood, and the next write to the document that needs room drops the list.
    assert bool(lists) == (step is Step.COMMITTED)
    assert bank.handled == (2 if step in (Step.HANDLED, Step.LISTED) else 1)


@pytest.mark.parametrize("step", [Step.FENCED, Step.LISTED, Step.WRITTEN, Step.COMMITTING])
def test_the_next_owner_may_die_too(step: Step, bank: Bank, harness: Callable[..., Harness]) -> None:
    bank.book(1)
    crash(bank, Step.LISTED)
    crash(bank, step)
    harness(bank.app).drain()
    assert bank.books == (1, ["1"], {})


def test_a_missing_document_is_fenced_too(bank: Bank) -> None:
    bank.book(1)
    crash(bank, Step.LISTED)
    assert bank.documents.read(KEY) == StoredDocument(0, b"")
    crash(bank, Step.FENCED)
    assert bank.documents.read(KEY) == StoredDocument(1, b"")


class Paused:
    """An attempt in a thread of its own, which stands still at a step until it is let go on."""

    def __init__(self, bank: Bank, step: Step) -> None:
        self.outcomes: list[object] = []
        self._bank = bank
        self._reached, self._goes_on = Event(), Event()
        bank.on(step, self._stand_still)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._reached.wait(PATIENCE_SECONDS)

    def go_on(self) -> None:
        self._goes_on.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _stand_still(self) -> None:
        self._reached.set()
        assert self._goes_on.wait(PATIENCE_SECONDS)

    def _run(self) -> None:
        with closing(Harness(self._bank.app, owner="paused")) as harness:
            self.outcomes.append(harness.run_one())


@pytest.mark.parametrize("step", [Step.CLAIMED, Step.HANDLED, Step.LISTED, Step.WRITTEN])
def test_an_owner_that_stood_still_changes_nothing_and_sends_nothing_when_it_goes_on(
    step: Step, bank: Bank, harness: Callable[..., Harness]
) -> None:
    bank.book(1)
    paused = Paused(bank, step)
    bank.take_over("paused")
    survivor = harness(bank.app, owner="survivor")
    survivor.drain()
    assert bank.books == (1, ["1"], {})
    paused.go_on()
    survivor.drain()
    assert [type(each) for each in paused.outcomes] == [Lost]
    assert bank.books == (1, ["1"], {})


def test_an_owner_that_reads_the_document_after_the_id_has_left_it_changes_nothing(
    app: App, ledger: Ledger, documents: DocumentStore, harness: Callable[..., Harness]
) -> None:
    """Its read sees a version that nothing fenced after it, so the claim decides."""
    bank = Bank(app, ledger, documents, ids_max=1)
    bank.book(1)
    paused = Paused(bank, Step.CLAIMED)
    bank.take_over("paused")
    survivor = harness(bank.app, owner="survivor")
    survivor.drain()
    bank.book(2)
    survivor.drain()
    assert [entry.partition(" ")[0] for entry in bank.ids] == ["accounts.book"]
    paused.go_on()
    assert [type(each) for each in paused.outcomes] == [Lost]
    assert bank.books == (3, ["1", "2"], {})


def test_two_fencers_at_once_agree(bank: Bank, harness: Callable[..., Harness]) -> None:
    """A paused owner that fences, and its successor: both read the same answer, and neither takes the other's list."""
    bank.book(1)
    crash(bank, Step.WRITTEN)
    first = Paused(bank, Step.FENCED)
    bank.take_over("paused")
    survivor = harness(bank.app, owner="survivor")
    survivor.drain()
    first.go_on()
    assert [type(each) for each in first.outcomes] == [Lost]
    assert bank.books == (1, ["1"], {})
    assert bank.handled == 1


def test_a_fencer_that_stood_still_leaves_the_list_of_its_successor(
    bank: Bank, harness: Callable[..., Harness]
) -> None:
    bank.book(1)
    crash(bank, Step.LISTED)
    first = Paused(bank, Step.FENCED)
    bank.take_over("paused")
    crash(bank, Step.WRITTEN)
    first.go_on()
    harness(bank.app, owner="survivor").drain()
    assert bank.books == (1, ["1"], {})


def test_fencers_that_interleave_both_fence(bank: Bank, harness: Callable[..., Harness]) -> None:
    """The second fences between the first one's read and its write, so the first one reads again."""
    bank.book(1)
    worker = harness(bank.app)
    claim = worker.claim_one()
    assert claim is not None
    stage = engine_of(bank.app).stages()["accounts.book"]
    queue_commit = queue_commit_of(engine_of(bank.app), worker.access, worker.node)
    real, is_first = bank.documents.read, True

    def read(key: str) -> StoredDocument:
        nonlocal is_first
        found = real(key)
        if is_first:
            is_first = False
            assert join(stage, queue_commit, claim) is None
        return found

    bank.documents.read = read  # type: ignore[method-assign]
    assert join(stage, queue_commit, claim) is None
    assert real(KEY).version == 2


def test_two_messages_of_one_document_at_once_both_count(bank: Bank, harness: Callable[..., Harness]) -> None:
    bank.book(1)
    other = harness(bank.app, owner="other")

    def interfere() -> None:
        bank.book(2)
        other.run_one()

    bank.on(Step.LISTED, interfere)
    worker = harness(bank.app)
    patient(worker)
    worker.drain()
    assert bank.books == (3, ["1", "2"], {})
    assert bank.handled == 3


def test_a_lost_answer_to_the_write_is_looked_up(bank: Bank, harness: Callable[..., Harness]) -> None:
    real = bank.documents.write
    answers = iter([StoreUnavailable("the answer is lost")])

    def write(key: str, body: bytes, version: int) -> bool:
        written = real(key, body, version)
        for error in answers:
            raise error
        return written

    bank.documents.write = write  # type: ignore[method-assign]
    bank.book(1)
    worker = harness(bank.app)
    patient(worker)
    worker.drain()
    assert bank.books == (1, ["1"], {})
    assert bank.handled == 1


def patient(worker: Harness) -> None:
    class Waits:
        def wait(self, seconds: float) -> bool:
            return True

    worker.transaction._stop = Waits()


@pytest.mark.parametrize("method", ["read", "keep", "write", "lists"])
def test_an_outage_of_the_documents_counts_against_no_message(
    method: str, bank: Bank, harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(bank.documents, method)
    errors = iter([StoreUnavailable("away")] * 2)

    def call(*arguments: Any) -> Any:
        for error in errors:
            raise error
        return real(*arguments)

    monkeypatch.setattr(bank.documents, method, call)
    bank.book(1)
    if method == "lists":
        crash(bank, Step.CLAIMED)
    worker = harness(bank.app)
    patient(worker)
    outcomes = worker.drain()
    assert [type(each) for each in outcomes] == [Completed, Completed]
    assert bank.books == (1, ["1"], {})


def test_a_document_that_was_restored_without_its_list_is_an_error_that_says_so(
    bank: Bank, harness: Callable[..., Harness]
) -> None:
    bank.book(1)
    crash(bank, Step.WRITTEN)
    for name in bank.documents.lists(KEY):
        bank.documents.drop(KEY, name)
    worker = harness(bank.app)
    worker.drain()
    (letter,) = worker.dead_letters()
    assert "its list of outgoing messages is gone. Was the store of documents restored" in letter.summary
    assert (bank.content["cents"], bank.handled) == (1, 1)


# The bound on ids


def test_ids_leave_the_document_only_when_their_message_is_settled_and_room_is_needed(
    app: App, ledger: Ledger, documents: DocumentStore, harness: Callable[..., Harness]
) -> None:
    bank = Bank(app, ledger, documents, ids_max=3)
    for cents in range(1, 9):
        bank.book(cents)
    harness(bank.app).drain()
    assert bank.content["cents"] == 36
    assert 1 <= len(bank.ids) <= 3


def test_a_document_that_is_full_of_ids_still_needed_puts_the_message_off_uncounted(
    app: App, ledger: Ledger, documents: DocumentStore, harness: Callable[..., Harness], clock: ManualClock
) -> None:
    bank = Bank(app, ledger, documents, ids_max=1)
    bank.book(1)
    paused = Paused(bank, Step.WRITTEN)
    bank.on(Step.CLAIMED, lambda: None)
    bank.book(2)
    other = harness(bank.app, owner="other")
    outcome = other.run_one()
    assert isinstance(outcome, Returned)
    assert "is full of ids still needed" in outcome.why
    assert len(bank.ids) == 1
    paused.go_on()
    other.drain()
    assert bank.books == (3, ["1", "2"], {})
    assert other.history("booking:2")[-1].attempt == 1


def test_a_list_whose_message_has_committed_is_dropped_with_its_id_and_never_sent(
    app: App, ledger: Ledger, documents: DocumentStore, harness: Callable[..., Harness]
) -> None:
    bank = Bank(app, ledger, documents, ids_max=1)
    bank.book(1)
    crash(bank, Step.COMMITTED)
    assert len(documents.lists(KEY)) == 1
    bank.book(2)
    harness(bank.app).drain()
    assert bank.books == (3, ["1", "2"], {})


# Messages that end without their commit


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Lets the queue refuse the outgoing messages of ``accounts.book``, as it does for content that it cannot store."""
    real, is_refusing = QueueCommit.put, False

    def put(queue_commit: QueueCommit, claim: Claim, produced: Any) -> None:
        if is_refusing and claim.stage == "accounts.book":
            raise StoreRefused("the queue refuses this data")
        real(queue_commit, claim, produced)

    def refuse(on: bool) -> None:
        nonlocal is_refusing
        is_refusing = on

    monkeypatch.setattr(QueueCommit, "put", put)
    return refuse


def test_a_message_whose_list_the_queue_refuses_is_a_letter_and_its_replay_sends_the_list(
    bank: Bank, harness: Callable[..., Harness], refusing: Callable[[bool], None]
) -> None:
    bank.book(1)
    refusing(True)
    worker = harness(bank.app)
    worker.drain()
    (letter,) = worker.dead_letters()
    assert "refuses this data" in letter.summary
    assert (bank.content["cents"], bank.handled, len(bank.ids)) == (1, 1, 1)
    refusing(False)
    revive(bank, worker)
    worker.drain()
    assert bank.books == (1, ["1"], {})
    assert bank.handled == 1


def revive(bank: Bank, worker: Harness) -> None:
    (letter,) = worker.dead_letters()
    session = worker.access.session
    queue_commit = queue_commit_of(engine_of(bank.app), worker.access, worker.node)
    (kept,) = session.dead_letters.select(Selection("all"))
    session.begin()
    session.dead_letters.remove(kept.id)
    queue_commit.revive(letter)
    session.commit()


def test_a_takeover_sends_the_list_of_an_attempt_that_wrote_the_document(
    bank: Bank, harness: Callable[..., Harness]
) -> None:
    bank.book(1)
    bank.on(Step.WRITTEN, halt)
    victim = Harness(bank.app, owner="victim")
    with pytest.raises(Halt):
        victim.drain()
    victim.access.rollback()
    engine_of(bank.app).listener = lambda step, claim: None
    survivor = harness(bank.app, owner="survivor")
    settlement = Settlement(queue_commit_of(engine_of(bank.app), survivor.access, survivor.node))
    (claim,) = survivor.access.session.queue.owned("victim")
    stage = engine_of(bank.app).stages()[claim.stage]
    outcome = settlement.settle(stage, claim, Buried("worker-died", ValueError("it died too often")))
    assert isinstance(outcome, Duplicate)
    survivor.drain()
    victim.transaction.close()
    victim.access.close()
    assert bank.books == (1, ["1"], {})
    assert survivor.dead_letters() == []


def test_a_buried_message_was_fenced_so_a_paused_owner_writes_nothing_after_it(
    bank: Bank, harness: Callable[..., Harness]
) -> None:
    bank.book(1)
    paused = Paused(bank, Step.LISTED)
    engine_of(bank.app).listener = lambda step, claim: None
    survivor = harness(bank.app, owner="survivor")
    settlement = Settlement(queue_commit_of(engine_of(bank.app), survivor.access, survivor.node))
    (claim,) = survivor.access.session.queue.owned("paused")
    stage = engine_of(bank.app).stages()[claim.stage]
    assert isinstance(settlement.settle(stage, claim, Buried("exhausted", ValueError("x"))), Buried)
    paused.go_on()
    assert bank.books == (0, [], {})
    revive(bank, survivor)
    survivor.drain()
    assert bank.books == (1, ["1"], {})


def test_a_handler_that_fails_leaves_the_document_as_it_was(
    app: App, documents: DocumentStore, harness: Callable[..., Harness]
) -> None:
    @app.endpoint("accounts.book", redelivery=Redelivery.fixed(every_seconds=1, times=2))
    @in_document(documents, key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["cents"] = booking.cents
        if booking.cents < 0 and ctx.attempt < 3:
            raise ValueError("not yet")

    app.start(book, Booking(7, -5), flow_id="flow")
    harness(app).drain()
    content = json.loads(documents.read(KEY).body)
    assert content["cents"] == -5
    assert len(content["ids"]) == 1


def test_a_handler_that_does_not_use_its_document_writes_none(
    app: App, documents: DocumentStore, harness: Callable[..., Harness]
) -> None:
    @app.endpoint("accounts.book")
    @in_document(documents, key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None: ...

    app.start(book, Booking(7, 1), flow_id="flow")
    assert [type(each) for each in harness(app).drain()] == [Completed]
    assert documents.read(KEY) == StoredDocument(0, b"")


# Wrong use


def letter_of(app: App, harness: Callable[..., Harness], *messages: Booking) -> str:
    with app.initiate() as out:
        if len(messages) == 1:
            out.send(app.target("accounts.book"), messages[0], flow_id="flow")
        else:
            out.together(app.target("accounts.book"), messages, flow_id="flow")
    worker = harness(app)
    worker.drain()
    (letter,) = worker.dead_letters()
    return letter.causes[0].message


def test_the_database_is_refused_in_a_stage_with_a_document(app: App, harness: Callable[..., Harness]) -> None:
    documents = MemoryDocuments()

    def write(ctx: Context) -> None:
        ctx.sql("SELECT 1")

    with pytest.raises(DeclarationError, match=r"handler write_itself uses ctx\.sql.*Send a message to a stage"):

        @app.endpoint("accounts.write")
        @in_document(documents, key="account:{account}", ids="ids")
        def write_itself(ctx: Context, booking: Booking) -> None:
            ctx.sql("SELECT 1")

    @app.endpoint("accounts.book")
    @in_document(documents, key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["x"] = 1
        write(ctx)

    assert "accounts.book has a document, and used the database" in letter_of(app, harness, Booking(7, 1))


def test_a_document_is_refused_where_none_is_declared(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("accounts.book")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["x"] = 1

    assert "its handlers have no document: put @in_document above one" in letter_of(app, harness, Booking(7, 1))


def test_the_place_of_the_ids_is_refused_to_the_handler(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["ids"] = 1

    assert "the handler wrote ids into the document" in letter_of(app, harness, Booking(7, 1))


def test_several_messages_in_one_envelope_are_refused_a_document(app: App, harness: Callable[..., Harness]) -> None:
    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["x"] = 1

    assert "send each of its messages in an envelope of its own" in letter_of(
        app, harness, Booking(7, 1), Booking(8, 1)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key of in_document must be a text"),
        ({"ids": 5}, "ids of in_document must be a text"),
        ({"ids": "meta..ids"}, "has an empty name"),
        ({"store": {}}, "is no store of documents, with the methods read, write, keep, lists, drop"),
        ({"ids_max": 0}, "ids_max of in_document must be a whole number above 0"),
        ({"key": "account:{0}"}, "may hold fields of the message alone"),
        ({"key": "account:{number}"}, "Booking has no field 'number'. It has: account, cents"),
    ],
)
def test_a_wrong_document_is_refused_when_it_is_declared(app: App, options: dict[str, Any], said: str) -> None:
    def declare() -> None:
        @app.endpoint("accounts.book")
        @in_document(**{"store": MemoryDocuments(), "key": "account:{account}", "ids": "ids", **options})
        def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match=said):
        declare()


def test_a_document_that_is_declared_above_the_endpoint_is_refused(app: App) -> None:
    @app.endpoint("accounts.book")
    def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match=r"directly above the function, below @app\.endpoint"):
        in_document(MemoryDocuments(), key="account:{account}", ids="ids")(book)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"rate": object()}, "cannot be written as JSON"),
        ({"rate": float("nan")}, "does not survive JSON unchanged"),
        ({"rates": {5: 1}}, "does not survive JSON unchanged"),
        ({"meta": 5}, "the document has 5 at meta, which must be an object"),
    ],
    ids=["an object", "nan", "a number as a key", "the place of the ids"],
)
def test_a_document_that_cannot_be_kept_as_it_is_makes_a_dead_letter(
    app: App, harness: Callable[..., Harness], written: dict[str, Any], said: str
) -> None:
    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="meta.ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document.update(written)

    assert said in letter_of(app, harness, Booking(7, 1))


def test_a_batch_is_refused(app: App) -> None:
    def declare() -> None:
        @app.endpoint("accounts.book", batch=5)
        @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
        def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match="has batch=5, and its messages write documents"):
        declare()


@pytest.mark.parametrize("options", [{"key": ("account",)}, {"guard": "proactive", "key": ("account",)}])
def test_a_guard_and_a_key_beside_a_document_are_refused(app: App, options: dict[str, Any]) -> None:
    def declare() -> None:
        @app.endpoint("accounts.book", **options)
        @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
        def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match="has a document, and a guard= or key="):
        declare()


def test_an_effect_is_refused_in_a_stage_with_a_document(app: App, harness: Callable[..., Harness]) -> None:
    def charge(booking: Booking) -> Booked:
        return Booked(booking.cents)

    held = {"card": app.effect("card", call=charge)}

    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.effect(held["card"], booking)

    # A call that the declaration does not see is refused by the run.
    assert "accounts.book has a document, and called an effect" in letter_of(app, harness, Booking(7, 1))


def test_the_database_is_refused_to_a_handler_of_another_type_than_the_document_s(app: App) -> None:
    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match=r"handler note uses ctx\.sql.*Send a message to a stage"):

        @book.handler
        def note(ctx: Context, booked: Booked) -> None:
            ctx.sql("SELECT 1")


def test_a_second_handler_of_the_same_type_is_refused(app: App) -> None:
    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None: ...

    def count(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match="several handlers of one message type"):
        book.handler(count)


def test_each_type_of_message_has_a_document_of_its_own(app: App, harness: Callable[..., Harness]) -> None:
    documents = MemoryDocuments()

    @app.endpoint("accounts.book")
    @in_document(documents, key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None:
        ctx.document["cents"] = booking.cents

    @book.handler
    @in_document(documents, key="booked:{cents}", ids="meta.ids")
    def note(ctx: Context, booked: Booked) -> None:
        ctx.document["seen"] = True

    app.start(book, Booking(7, 1), flow_id="booking")
    app.start(app.target("accounts.book"), Booked(3), flow_id="booked")
    harness(app).drain()
    assert json.loads(documents.read(KEY).body)["cents"] == 1
    assert json.loads(documents.read("booked:3").body)["seen"] is True


@pytest.mark.parametrize("options", [{"queue": "memory:"}, {"mode": "outbox"}])
def test_a_queue_in_another_database_and_another_mode_are_refused(options: dict[str, Any]) -> None:
    app = App("bank", database="memory:", **options)

    @app.endpoint("accounts.book")
    @in_document(MemoryDocuments(), key="account:{account}", ids="ids")
    def book(ctx: Context, booking: Booking) -> None: ...

    with pytest.raises(DeclarationError, match=r"accounts\.book .* has a document, and its queue is in another"):
        Harness(app)
