"""Business keys: another message that asks for the same runs no handler, and its caller gets the stored reply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from stagepost import App, Context, DeclarationError, Redelivery, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.testing import Harness, crash_everywhere
from stagepost.transaction.guards import KEY_LENGTH_MAX
from stagepost.transaction.outcome import Abandoned, AnsweredWithFailure, Buried, Completed
from stagepost.transaction.steps import Step, unobserved
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.conftest import Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres

GUARDS = ["proactive", "reactive"]
KEY = ("account", "invoice")


@dataclass
class Invoice:
    account: str
    invoice: int | None
    amount: int = 1


@dataclass
class Credit:
    account: str
    invoice: int


@dataclass
class Booked:
    number: int


class Shelf(BaseModel):
    row: int


@dataclass
class Parcel:
    labels: frozenset[str]
    parts: dict[str, int]
    place: Shelf


@pytest.fixture(params=GUARDS)
def guard(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def answers() -> list[int]:
    return []


@pytest.fixture
def caller(app: App, answers: list[int]) -> Target[Booked, None]:
    @app.endpoint("caller")
    def caller(ctx: Context, booked: Booked) -> None:
        answers.append(booked.number)

    return caller


@pytest.fixture
def other(app: App) -> Target[Invoice, None]:
    return app.remote("other", Invoice)


@pytest.fixture
def book(app: App, ledger: Ledger, guard: Any, other: Target[Invoice, None]) -> Target[Invoice, Booked]:
    @app.endpoint("book", key=KEY, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> Booked:
        ledger.write(ctx, f"{invoice.account} {invoice.invoice}")
        ctx.send(other, invoice)
        return Booked(invoice.amount)

    return book


def sent(worker: Harness, stage: str = "other") -> int:
    return len(worker.access.claimer.claim([stage], 100, "other/1", "test"))


def test_a_message_with_a_known_key_runs_no_handler_and_sends_nothing_again(
    app: App, book: Target[Invoice, Booked], ledger: Ledger, harness: NewHarness
) -> None:
    for number, key in enumerate([1, 1, 2, 1]):
        app.start(book, Invoice("a", key), flow_id=f"flow-{number}")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed] * 4
    assert sorted(ledger.entries) == ["a 1", "a 2"]
    assert sent(worker) == 2
    details = [each.detail for number in range(4) for each in worker.history(f"flow-{number}") if each.detail]
    assert details.count('duplicate of ["Invoice","a",1]') == 2


def test_a_duplicates_caller_gets_the_stored_reply_under_an_id_of_its_own(
    app: App, book: Target[Invoice, Booked], caller: Target[Booked, None], answers: list[int], harness: NewHarness
) -> None:
    app.start(book, Invoice("a", 1, 7), flow_id="first")
    worker = harness()
    worker.drain()
    for number in range(2):
        app.start(book, Invoice("a", 1, 7), flow_id=f"again-{number}", reply_to=caller)
    worker.drain()
    assert answers == [7, 7]
    assert worker.dead_letters() == []


def test_other_content_under_a_key_is_a_dead_letter_that_names_both(
    app: App, book: Target[Invoice, Booked], ledger: Ledger, harness: NewHarness
) -> None:
    app.start(book, Invoice("a", 1, 7), flow_id="first")
    worker = harness()
    worker.drain()
    app.start(book, Invoice("a", 1, 8), flow_id="second")
    worker.drain()
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.flow_id) == ("conflict", "second")
    (first,) = {each.message_id for each in worker.history("first") if each.waypoint == "accepted"}
    assert first in letter.summary
    assert ledger.entries == ["a 1"]


def test_a_duplicate_whose_caller_nobody_answered_is_a_dead_letter(
    app: App, ledger: Ledger, guard: Any, caller: Target[Booked, None], harness: NewHarness
) -> None:
    book = app.staged("book", reply=Booked, key=KEY, guard=guard)

    @book.stage
    def begin(ctx: Context, invoice: Invoice) -> None:
        ledger.write(ctx, "begin")
        ctx.next(Credit(invoice.account, 1))

    @book.stage(key=("account", "invoice"))
    def end(ctx: Context, credit: Credit) -> Booked:
        return Booked(credit.invoice)

    app.start(book, Invoice("a", 1), flow_id="first", reply_to=caller)
    worker = harness()
    worker.drain()
    app.start(book, Invoice("a", 1), flow_id="second", reply_to=caller)
    worker.drain()
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.stage, letter.flow_id) == ("duplicate", "book", "second")
    app.start(book, Invoice("a", 1), flow_id="third")
    worker.drain()
    assert len(worker.dead_letters()) == 1
    assert ledger.entries == ["begin"]


def test_of_several_messages_in_one_envelope_the_new_ones_run(
    app: App, book: Target[Invoice, Booked], ledger: Ledger, harness: NewHarness
) -> None:
    app.start(book, Invoice("a", 1), flow_id="first")
    worker = harness()
    worker.drain()
    with app.initiate() as out:
        out.together(book, [Invoice("a", key) for key in (3, 1, 2, 3)], flow_id="second")
    worker.drain()
    assert ledger.entries == ["a 1", "a 3", "a 2"]
    assert sent(worker) == 3
    with app.initiate() as out:
        out.together(book, [Invoice("b", 1, 1), Invoice("b", 1, 2)], flow_id="third")
    worker.drain()
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.flow_id) == ("conflict", "third")


def test_an_envelope_with_a_new_message_commits_and_says_which_caller_gets_no_reply(
    app: App, ledger: Ledger, guard: Any, caller: Target[Booked, None], answers: list[int], harness: NewHarness
) -> None:
    @app.endpoint("book", key={Invoice: KEY}, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> Booked | None:
        ledger.write(ctx, f"{invoice.invoice}")
        return Booked(invoice.amount) if invoice.invoice == 2 else None

    app.start(book, Invoice("a", 1), flow_id="first")
    worker = harness()
    worker.drain()
    with app.initiate() as out:
        out.together(book, [Invoice("a", 1), Invoice("a", 2, 7)], flow_id="second", reply_to=caller)
    worker.drain()
    assert (sorted(ledger.entries), answers, worker.dead_letters()) == (["1", "2"], [7], [])
    details = [each.detail for each in worker.history("second") if each.waypoint == "committed" and each.detail]
    key = '["Invoice","a",1]'
    assert details == [f"duplicate of {key}; no reply was stored for {key}"]


def test_the_types_of_an_endpoint_have_keys_of_their_own(
    app: App, ledger: Ledger, guard: Any, harness: NewHarness
) -> None:
    @app.endpoint("book", key={Invoice: ("invoice",)}, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> None:
        ledger.write(ctx, "invoice")

    @book.handler
    def credit(ctx: Context, credit: Credit) -> None:
        ledger.write(ctx, "credit")

    target: Target[Any, Any] = book
    for number, message in enumerate([Invoice("a", 1), Invoice("a", 1), Credit("a", 1), Credit("a", 1)]):
        app.start(target, message, flow_id=f"flow-{number}")
    harness().drain()
    assert sorted(ledger.entries) == ["credit", "credit", "invoice"]


@pytest.mark.in_one_database
@pytest.mark.parametrize("new_database", ["memory"], indirect=True)
def test_equal_sets_mappings_and_models_are_equal_keys(app: App, harness: NewHarness) -> None:
    booked: list[str] = []

    @app.endpoint("book", key=("labels", "parts", "place"))
    def book(ctx: Context, parcel: Parcel) -> None:
        booked.append(ctx.flow_id)

    # More texts than a set shows in one order by chance.
    labels = [f"label {number}" for number in range(20)]
    for flow_id, each in (("first", labels), ("second", labels[::-1])):
        parts = {name: len(name) for name in each}
        app.start(book, Parcel(frozenset(each), parts, Shelf(row=3)), flow_id=flow_id)
    worker = harness()
    worker.drain()
    assert (len(booked), worker.dead_letters()) == (1, [])
    (key,) = [each.detail for flow in ("first", "second") for each in worker.history(flow) if each.detail]
    # Another process has other hashes, and finds the same order.
    assert key.startswith('duplicate of ["Parcel",["label 0","label 1","label 10",')


def test_a_failed_attempt_leaves_the_key_free(app: App, ledger: Ledger, guard: Any, harness: NewHarness) -> None:
    failing = [True]

    @app.endpoint("book", key=KEY, guard=guard, redelivery=Redelivery.none())
    def book(ctx: Context, invoice: Invoice) -> None:
        ledger.write(ctx, "run")
        if failing.pop() if failing else False:
            raise ValueError("once")

    app.start(book, Invoice("a", 1), flow_id="first")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Buried]
    app.start(book, Invoice("a", 1), flow_id="second")
    assert [type(each) for each in worker.drain()] == [Completed]
    assert ledger.entries == ["run"]


def test_a_reactive_stage_that_fails_because_of_the_first_message_is_a_duplicate(
    app: App, ledger: Ledger, caller: Target[Booked, None], answers: list[int], harness: NewHarness
) -> None:
    """The user's own check fires before the guard does, as a unique key would."""
    runs: list[str] = []

    @app.endpoint("book", key=KEY, guard="reactive", redelivery=Redelivery.none())
    def book(ctx: Context, invoice: Invoice) -> Booked:
        runs.append(ctx.flow_id)
        if len(runs) > 1:
            raise ValueError("unique constraint failed")
        ledger.write(ctx, "run")
        return Booked(5)

    for flow_id in ("first", "second"):
        app.start(book, Invoice("a", 1), flow_id=flow_id, reply_to=caller)
    worker = harness()
    worker.drain()
    assert (answers, worker.dead_letters(), ledger.entries) == ([5, 5], [], ["run"])
    assert len(runs) == 2
    app.start(book, Invoice("a", 1, 9), flow_id="third")
    worker.drain()
    assert [each.reason for each in worker.dead_letters()] == ["conflict"]


def test_a_proactive_stage_does_not_run_for_a_duplicate_and_a_reactive_one_does(
    app: App, guard: Any, harness: NewHarness
) -> None:
    runs: list[str] = []

    @app.endpoint("book", key=KEY, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> None:
        runs.append(ctx.flow_id)

    app.start(book, Invoice("a", 1), flow_id="first")
    worker = harness()
    worker.drain()
    app.start(book, Invoice("a", 1), flow_id="second")
    worker.drain()
    assert len(runs) == {"proactive": 1, "reactive": 2}[guard]


def test_a_failure_reply_keeps_no_key(app: App, guard: Any, caller: Target[Booked, None], harness: NewHarness) -> None:
    @app.endpoint("book", key=KEY, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> Booked:
        ctx.fail_with(Booked(0))

    for flow_id in ("first", "second"):
        app.start(book, Invoice("a", 1), flow_id=flow_id, reply_to=caller)
    outcomes = [type(each) for each in harness().drain()]
    assert outcomes.count(AnsweredWithFailure) == 2


@pytest.mark.parametrize("invoice", [Invoice("a", None), Invoice("x" * KEY_LENGTH_MAX, 1)], ids=["null", "long"])
def test_a_message_whose_key_cannot_be_stored_is_a_dead_letter(
    app: App, book: Target[Invoice, Booked], harness: NewHarness, invoice: Invoice
) -> None:
    app.start(book, invoice, flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert letter.reason == "undecodable"


@pytest.mark.parametrize("new_database", ["sqlite", "postgres", "sqlite-outbox", "postgres-two_phase"], indirect=True)
def test_of_two_messages_at_once_one_does_the_work_and_both_callers_are_answered(
    app: App, guard: Any, ledger: Ledger, caller: Target[Booked, None], answers: list[int], harness: NewHarness
) -> None:
    both = threading.Barrier(2)
    runs: list[str] = []

    @app.endpoint("book", key=KEY, guard=guard)
    def book(ctx: Context, invoice: Invoice) -> Booked:
        runs.append(ctx.flow_id)
        if guard == "reactive" and runs.count(ctx.flow_id) == 1:
            # Both run before either has begun its transaction.
            both.wait(PATIENCE_SECONDS)
        ledger.write(ctx, "booked")
        return Booked(invoice.amount)

    for number in range(2):
        app.start(book, Invoice("a", 1, 7), flow_id=f"flow-{number}", reply_to=caller)
    worker = harness()
    claims = [worker.claim_one(), worker.claim_one()]

    begun: set[str] = set()

    def wait_at_the_start(step: Step, claim: Claim) -> None:
        if step is Step.CLAIMED and claim.flow_id not in begun:
            begun.add(claim.flow_id)
            both.wait(PATIENCE_SECONDS)

    engine_of(app).listener = wait_at_the_start

    def run(claim: Claim | None) -> object:
        assert claim is not None
        with closing(Harness(app, owner=claim.owner)) as runner:
            return type(runner.transaction.run(claim))

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(run, claims)) <= {Completed, Abandoned}
    engine_of(app).listener = unobserved
    # The harness does not wait where the other one has the database for too long.
    worker.access.claimer.release(worker.access.session.queue.owned("harness/1"), "test")
    worker.drain()
    assert (ledger.entries, answers, worker.dead_letters()) == (["booked"], [7, 7], [])
    assert len(set(runs)) == (1 if guard == "proactive" else 2)


def test_messages_of_a_batch_have_their_keys_one_by_one(new_app: NewApp, request: pytest.FixtureRequest) -> None:
    if "outbox" in request.node.callspec.id or "two_phase" in request.node.callspec.id:
        pytest.skip("batches are for the mode single")
    app = new_app()
    booked: list[int | None] = []

    @app.endpoint("book", key=KEY, batch=10)
    def book(ctx: Context, invoice: Invoice) -> None:
        booked.append(invoice.invoice)

    for number, key in enumerate([1, 1, 2]):
        app.start(book, Invoice("a", key), flow_id=f"flow-{number}")
    worker = Harness(app)
    claims = worker.access.claimer.claim(["book"], 10, "harness/1", "test")
    assert [type(each) for each in worker.transaction.run_batch(claims)] == [Completed] * 3
    worker.close()
    assert booked == [1, 2]


class Shop:
    """Three invoices of two keys, from a caller that waits for each."""

    def __init__(self, new_app: NewApp, ledger_of: Callable[[App], Ledger], guard: Any) -> None:
        self._new_app, self._ledger_of, self._guard = new_app, ledger_of, guard
        self.ledger: Ledger

    def make_app(self) -> App:
        app = self._new_app()
        self.ledger = ledger = self._ledger_of(app)

        @app.endpoint("book", key=KEY, guard=self._guard)
        def book(ctx: Context, invoice: Invoice) -> Booked:
            ledger.write(ctx, f"{invoice.account} {invoice.invoice}")
            return Booked(invoice.amount)

        @app.endpoint("caller")
        def caller(ctx: Context, booked: Booked) -> None:
            ledger.write(ctx, f"answer {booked.number}")

        return app

    def scenario(self, app: App) -> None:
        for number, key in enumerate([1, 1, 2]):
            invoice = Invoice("a", key, key)
            app.start(app.target("book"), invoice, flow_id=f"flow-{number}", reply_to=app.target("caller"))

    def effects(self, app: App) -> Any:
        with closing(Harness(app)) as worker:
            return sorted(self.ledger.entries), [letter.summary for letter in worker.dead_letters()]


def test_each_key_has_its_effect_once_wherever_its_process_dies(
    new_app: NewApp, ledger_of: Callable[[App], Ledger], guard: Any
) -> None:
    shop = Shop(new_app, ledger_of, guard)
    found = crash_everywhere(shop.make_app, shop.scenario, shop.effects)
    assert [str(each) for each in found if not each.is_exactly_once] == []
    assert found[0].expected == (["a 1", "a 2", "answer 1", "answer 1", "answer 2"], [])


class TestDeclaring:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"key": "account"}, "takes the names of fields"),
            ({"key": ()}, "takes the names of fields"),
            ({"key": {}}, "names no message type"),
            ({"key": ("account", 1)}, "and 1 is none"),
            ({"key": ("account", "account")}, "names a field twice"),
            ({"key": ("number",)}, "Invoice has account, invoice, amount"),
            ({"key": {"Invoice": ("account",)}}, "is no message type"),
            ({"key": {Invoice: ("number",)}}, "Invoice has account, invoice, amount"),
            ({"key": KEY, "guard": "none"}, "would then recognise nothing"),
            ({"guard": "strict"}, "is not a guard"),
        ],
    )
    def test_a_key_that_cannot_work_is_refused(self, options: dict[str, Any], text: str) -> None:
        app = App("shop", database="memory:")
        with pytest.raises(DeclarationError, match=text):

            @app.endpoint("book", **options)
            def book(ctx: Context, invoice: Invoice) -> None: ...

    def test_a_key_of_a_type_that_no_handler_takes_is_refused(self) -> None:
        app = App("shop", database="memory:")

        @app.endpoint("book", key={Credit: ("account",)})
        def book(ctx: Context, invoice: Invoice) -> None: ...

        with pytest.raises(DeclarationError, match="none of its handlers takes"):
            engine_of(app).stages()

    def test_a_key_that_says_not_of_which_type_is_refused(self) -> None:
        app = App("shop", database="memory:")

        @app.endpoint("book", key=KEY)
        def book(ctx: Context, invoice: Invoice) -> None: ...

        with pytest.raises(DeclarationError, match="does not name one"):

            @book.handler
            def credit(ctx: Context, credit: Credit) -> None: ...

    @pytest.mark.parametrize("guard", ["none", "reactive", "proactive"])
    def test_a_guard_without_a_key_is_refused_where_the_queue_row_is_the_guard(self, guard: Any) -> None:
        app = App("shop", database="memory:")

        @app.endpoint("book", guard=guard)
        def book(ctx: Context, invoice: Invoice) -> None: ...

        with pytest.raises(DeclarationError, match="queue row is the guard"):
            engine_of(app).modes()

    @pytest.mark.parametrize("annotation", [float, float | None, list[float], Any, "Rate"], ids=str)
    def test_a_float_is_no_part_of_a_key(self, annotation: Any) -> None:
        rate = make_dataclass("Rate", [("value", float)])
        message = make_dataclass("Quote", [("value", rate if annotation == "Rate" else annotation)])
        app = App("shop", database="memory:")

        def book(ctx: Context, message: Any) -> None: ...

        book.__annotations__["message"] = message
        with pytest.raises(DeclarationError, match=r"Quote\.value, which may hold a float"):
            app.endpoint("book", key=("value",))(book)

    def test_a_key_and_an_effect_go_into_two_stages(self, tmp_path: Path) -> None:
        app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}")

        def capture(request: Invoice, key: str) -> Booked:
            return Booked(1)

        card = app.effect("card", call=capture)

        with pytest.raises(DeclarationError, match="business key"):

            @app.endpoint("book", key=KEY)
            def book(ctx: Context, invoice: Invoice) -> None:
                ctx.effect(card, invoice)
