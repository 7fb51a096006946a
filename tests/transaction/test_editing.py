"""A dead letter goes on in other words: a new message under a new id, with the old one as its cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.codec import decode_envelope
from stagepost.flow.errors import StoreError
from stagepost.observe.trace import read_trace
from stagepost.ports.dead_letters import KeptLetter, Selection
from stagepost.recovery.editing import EditRefused, document_of, edited_messages, envelope_of, with_value
from stagepost.testing import Harness
from stagepost.transaction.editing import check_fits, edit
from stagepost.transaction.enqueueing import attempt_of
from stagepost.transaction.queue_commit import QueueCommit

if TYPE_CHECKING:
    from tests.conftest import Ledger

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    amount: int


@dataclass
class Charge:
    amount: int


@dataclass
class Charged:
    amount: int


@dataclass
class Basket:
    note: str = ""


@pytest.fixture
def worker(app: App, harness: NewHarness, ledger: Ledger) -> Harness:
    """An order of -1 was started; its charge is a dead letter, with a stage above it that waits for the reply."""

    @app.endpoint("charge", redelivery=Redelivery.none())
    def charge(ctx: Context, charge: Charge) -> Charged:
        ledger.write(ctx, f"charge {charge.amount} for {ctx.properties['customer']}")
        if charge.amount < 0:
            raise ValueError(charge.amount)
        return Charged(charge.amount)

    order = app.staged("order", redelivery=Redelivery.none())

    @order.stage
    def begin(ctx: Context, state: Basket, order: Order) -> None:
        state.note = "kept"
        ctx.request(charge, Charge(order.amount))

    @order.stage
    def charged(ctx: Context, state: Basket, charged: Charged) -> None:
        ledger.write(ctx, f"charged {charged.amount}, {state.note}")
        if charged.amount == 13:
            raise LookupError(charged.amount)

    app.start(app.target("order"), Order(-1), flow_id="order:1", properties={"customer": "ada"})
    worker = harness()
    worker.drain()
    return worker


def only_letter(worker: Harness) -> KeptLetter:
    (kept,) = worker.access.session.dead_letters.select(Selection("all"))
    return kept


def edited(app: App, worker: Harness, *assignments: str, kept: KeptLetter | None = None, new_id: str = "new") -> bool:
    kept = kept or only_letter(worker)
    envelope = envelope_of(kept.letter)
    document = document_of(envelope)
    for each in assignments:
        document = with_value(document, each)
    messages = edited_messages(envelope, document)
    assert messages is not None
    queue_commit = QueueCommit(worker.access.session, engine_of(app).clock, "cli:ada")
    return edit(queue_commit, kept, envelope, messages, message_id=new_id, who="ada")


def test_the_new_message_goes_on_where_the_old_one_stood(app: App, worker: Harness, ledger: Ledger) -> None:
    assert edited(app, worker, "messages.0.body.amount=7")
    assert worker.dead_letters() == []
    worker.drain()
    # The reply found its way back to the stage that waits, with its state, and the properties are there.
    assert ledger.entries == ["charge 7 for ada", "charged 7, kept"]
    assert worker.dead_letters() == []


def test_all_but_id_cause_and_content_stays_as_it_was(app: App, worker: Harness) -> None:
    old = only_letter(worker)
    before = decode_envelope(old.letter.envelope)
    engine_of(app).clock.advance(60)  # type: ignore[attr-defined]
    edited(app, worker, "messages.0.body.amount=7")
    claim = worker.claim_one()
    assert claim is not None
    assert (claim.message_id, claim.flow_id, claim.origin_at) == ("new", "order:1", old.letter.origin_at)
    assert (claim.failures, claim.deaths, attempt_of(claim), claim.deliveries > 1) == (0, 0, 1, False)
    after = decode_envelope(claim.envelope)
    assert bytes(after.messages[0].body) == b'{"amount":7}'
    assert (after.message_id, after.cause_id, after.sent_at) == ("new", before.message_id, engine_of(app).clock.now())
    assert after == msgspec.structs.replace(
        before,
        message_id="new",
        cause_id=before.message_id,
        sent_at=engine_of(app).clock.now(),
        messages=after.messages,
    )
    worker.transaction.run(claim)


def test_the_journal_says_who_edited_what_into_what(app: App, worker: Harness) -> None:
    old = only_letter(worker).letter
    edited(app, worker, "messages.0.body.amount=7")
    *_, last, first = worker.history("order:1")
    assert (last.message_id, last.waypoint, last.detail) == (old.message_id, "edited", "by ada, into new")
    assert (last.stage, last.node, last.attempt) == ("charge", "cli:ada", 1)
    assert (first.message_id, first.waypoint, first.cause_id) == ("new", "sent", old.message_id)
    assert (first.stage, first.kind, first.origin_at, first.detail) == ("charge", "request", old.origin_at, "charge")


def test_a_trace_shows_the_new_message_below_the_old_one(app: App, worker: Harness) -> None:
    old = only_letter(worker).letter
    edited(app, worker, "messages.0.body.amount=7")
    trace = read_trace(worker.access.session.journal, "new")
    assert trace is not None
    assert trace.messages[old.message_id].standing == "edited"
    assert [each.message_id for each in trace.messages[old.message_id].caused] == ["new"]
    assert trace.standing == "under way"
    worker.drain()
    done = read_trace(worker.access.session.journal, "order:1")
    assert done is not None
    assert done.standing == "completed"


def test_what_was_edited_may_die_and_be_edited_again(app: App, worker: Harness, ledger: Ledger) -> None:
    edited(app, worker, "messages.0.body.amount=-2", new_id="second")
    worker.drain()
    edited(app, worker, "messages.0.body.amount=3", new_id="third")
    worker.drain()
    assert ledger.entries == ["charge 3 for ada", "charged 3, kept"]
    trace = read_trace(worker.access.session.journal, "order:1")
    assert trace is not None
    assert [trace.messages[each].standing for each in ("second", "third")] == ["edited", "committed"]
    assert trace.messages["third"].cause_id == "second"


def test_the_state_of_the_stage_can_be_edited(app: App, worker: Harness, ledger: Ledger) -> None:
    edited(app, worker, "messages.0.body.amount=13")
    worker.drain()
    (letter,) = (each for each in worker.access.session.dead_letters.select(Selection("all")))
    edited(app, worker, "messages.0.body.amount=14", 'messages.0.state.note="mended"', kept=letter, new_id="again")
    worker.drain()
    assert ledger.entries == ["charge 13 for ada", "charged 14, mended"]


def test_what_killed_its_process_runs_alone_in_other_words_too(app: App, worker: Harness) -> None:
    kept = only_letter(worker)
    session = worker.access.session
    session.begin()
    session.dead_letters.remove(kept.id)
    session.dead_letters.bury(replace(kept.letter, deaths=3))
    session.commit()
    edited(app, worker, "messages.0.body.amount=7")
    stages = list(engine_of(app).stages())
    assert worker.access.claimer.claim(stages, 10, "w", "node") == []
    suspect = worker.access.claimer.claim_suspect(stages, "w", "node")
    assert suspect is not None
    assert (suspect.message_id, suspect.deaths, suspect.deliveries) == ("new", 1, 1)


def test_a_letter_that_is_gone_is_not_edited(app: App, worker: Harness) -> None:
    kept = only_letter(worker)
    assert edited(app, worker, "messages.0.body.amount=7", kept=kept)
    lines = worker.history("order:1")
    assert not edited(app, worker, "messages.0.body.amount=8", kept=kept, new_id="another")
    assert worker.history("order:1") == lines
    assert not worker.access.session.is_begun


def test_an_edit_that_could_not_be_written_has_not_happened(
    app: App, worker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*waypoints: object) -> None:
        raise StoreError("the disk is full")

    before, lines = only_letter(worker), worker.history("order:1")
    with monkeypatch.context() as patch:
        patch.setattr(worker.access.session.journal, "record", fail)
        with pytest.raises(StoreError):
            edited(app, worker, "messages.0.body.amount=7")
    assert (only_letter(worker), worker.history("order:1")) == (before, lines)
    assert worker.access.claimer.pending(list(engine_of(app).stages())).is_drained


@pytest.mark.parametrize(
    ("stage", "assignment", "why"),
    [
        ("charge", 'messages.0.body.amount="seven"', r"charge could not read it.*does not fit Charge.*amount"),
        ("charge", "messages.0.body=[]", "does not fit Charge"),
        ("charge", "messages.0.body.amuont=7", r"Charge has no amuont; it has .*amount"),
        ("order.charged", "messages.0.state.note=1", r"does not fit Basket.*note"),
    ],
)
def test_what_its_stage_could_not_read_is_refused(
    app: App, worker: Harness, stage: str, assignment: str, why: str
) -> None:
    if stage == "order.charged":
        edited(app, worker, "messages.0.body.amount=13")
        worker.drain()
    envelope = envelope_of(only_letter(worker).letter)
    assert envelope.to == stage
    messages = edited_messages(envelope, with_value(document_of(envelope), assignment))
    assert messages is not None
    with pytest.raises(EditRefused, match=why):
        check_fits(engine_of(app).stages()[stage], messages, envelope.messages)


def test_what_its_stage_can_read_fits(app: App, worker: Harness) -> None:
    envelope = envelope_of(only_letter(worker).letter)
    messages = edited_messages(envelope, with_value(document_of(envelope), "messages.0.body.amount=7"))
    assert messages is not None
    check_fits(engine_of(app).stages()["charge"], messages, envelope.messages)
