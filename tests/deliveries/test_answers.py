"""The meaning of each answer for the message: taken, refused, redelivered, or maybe delivered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from email.utils import formatdate

import msgspec
import pytest

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import ReplayRefused
from stagepost.gateway.out import Posted, Refusal
from stagepost.gateway.out.client import ANSWER_BYTES_MAX
from stagepost.ports.dead_letters import Selection
from stagepost.recovery.outbound import COPY_HORIZON
from stagepost.runtime.service import NeverStops
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.outcome import Buried, Completed, Redelivered
from stagepost.transaction.outcome_log import log_outcome
from stagepost.transaction.replaying import freeze, run_replay
from stagepost.transaction.steps import Halt, Step
from tests.deliveries.conftest import BODY, Declare, NewConsumer, NewHarness
from tests.deliveries.consumer import Act, Consumer, Request, answer, drip, half, nonsense, reset, silence
from tests.waiting import PATIENCE_SECONDS

Waypoints = Callable[[Harness, str], list[str]]

pytestmark = pytest.mark.longer_on_postgres

REFUSING = [400, 409, 410, 413, 415, 422]
UNANSWERED = [silence, half, reset, nonsense, drip]


CLAIM = Claim(0, "", 0, "orders.out", "m1", "f1", 0, 0, 0, b"")


def seconds_for(act: Act) -> float:
    """Return the time-out of a delivery that meets the act, and then an answer, which a busy machine may delay."""
    return 1.0 if act in (silence, drip) else PATIENCE_SECONDS


def kinds(outcomes: Sequence[object]) -> list[str]:
    return [each.reason if isinstance(each, Buried) else type(each).__name__ for each in outcomes]


def stamps(app: App, message_id: str) -> dict[str, int]:
    """Return the stamp of a message as another process sees it."""
    with closing(engine_of(app).access()) as access:
        return access.session.edge.left_at([CLAIM._replace(message_id=message_id)])


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_2xx_ends_the_delivery(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, waypoints: Waypoints, status: int
) -> None:
    shop = consumer(answer(status))
    route(shop, "f1")
    worker = harness()
    assert kinds(worker.drain()) == ["Completed"]
    assert waypoints(worker, "f1") == ["accepted", "received", "committed"]
    assert worker.history("f1")[-1].detail == f"delivered, {status}"
    assert [each.body for each in shop.requests] == [BODY]
    assert not stamps(app, shop.ids[0])


@pytest.mark.parametrize("status", REFUSING)
def test_a_business_error_is_never_redelivered_and_is_reported_in_the_commit_that_sets_it_aside(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, waypoints: Waypoints, status: int
) -> None:
    reports: list[Refusal] = []

    @app.endpoint("orders.refused")
    def refused(ctx: Context, refusal: Refusal) -> None:
        reports.append(refusal)

    shop = consumer(answer(status, b"no\x00 such account"))
    route(shop, "f1", report_to="orders.refused")
    worker = harness()
    assert kinds(worker.drain()) == ["refused", "Completed"]
    (message_id,) = shop.ids
    of_message = [each.waypoint for each in worker.history("f1") if each.message_id == message_id]
    assert of_message == ["accepted", "received", "refused", "dead"]
    assert reports == [Refusal(message_id, "f1", "orders.out", status, "no� such account")]
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.message_id) == ("refused", message_id)


@pytest.mark.parametrize(("at", "count"), [(Step.COMMITTING, 0), (Step.COMMITTED, 1)])
def test_a_refusal_and_its_report_are_one_commit(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, at: Step, count: int
) -> None:
    @app.endpoint("orders.refused")
    def refused(ctx: Context, refusal: Refusal) -> None: ...

    def halt(step: Step, claim: Claim) -> None:
        if step == at:
            raise Halt

    route(consumer(answer(422)), "f1", report_to="orders.refused")
    engine_of(app).listener = halt
    worker = harness()
    with pytest.raises(Halt):
        worker.run_one()
    worker.access.session.rollback()
    assert len(worker.dead_letters()) == count
    assert worker.access.claimer.pending(["orders.refused"]).ready == bool(count)


@pytest.mark.parametrize("status", [401, 403, 404, 301, 307, 402, 405])
def test_an_answer_from_the_wrong_place_is_a_failure_like_any_other_and_no_redirect_is_followed(
    consumer: NewConsumer, route: Declare, harness: NewHarness, status: int
) -> None:
    shop = consumer(answer(status, Location="/elsewhere"))
    route(shop, "f1")
    worker = harness()
    assert kinds(worker.drain()) == ["Redelivered", "Completed"]
    assert {each.line for each in shop.requests} == {"POST /take?token=canary HTTP/1.1"}


@pytest.mark.parametrize("act", [*UNANSWERED, *(answer(each) for each in (500, 502, 503, 504, 408, 425, 429))])
def test_a_failure_is_redelivered_with_the_same_id_and_another_number(
    consumer: NewConsumer, route: Declare, harness: NewHarness, act: Act
) -> None:
    shop = consumer(act)
    route(shop, "f1", timeout_seconds=seconds_for(act), redelivery=Redelivery.fixed(every_seconds=7, times=2))
    worker = harness()
    first, second = worker.drain()
    assert isinstance(first, Redelivered)
    assert isinstance(second, Completed)
    assert 7 * SECOND <= first.after <= 9 * SECOND
    assert len(set(shop.ids)) == 1
    assert [each.headers["stagepost-attempt"] for each in shop.requests] == ["1", "2"]


def test_a_consumer_that_is_not_there_certainly_took_nothing(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    with Consumer() as gone:
        pass
    route(gone, "f1", redelivery=Redelivery.none())
    worker = harness()
    (outcome,) = worker.drain()
    assert isinstance(outcome, Buried)
    assert outcome.reason == "exhausted"
    assert "not reached" in str(outcome.error)
    assert not stamps(app, worker.dead_letters()[0].message_id)


@pytest.mark.parametrize("act", [silence, half, reset, answer(500), answer(408)])
def test_a_business_error_after_an_attempt_that_may_have_been_taken_is_never_reported_as_refused(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, act: Act
) -> None:
    @app.endpoint("orders.refused")
    def refused(ctx: Context, refusal: Refusal) -> None: ...

    route(consumer(act, answer(422)), "f1", timeout_seconds=seconds_for(act), report_to="orders.refused")
    worker = harness()
    assert kinds(worker.drain()) == ["Redelivered", "maybe-delivered"]
    assert [each.waypoint for each in worker.history("f1")][-2:] == ["failed", "dead"]


@pytest.mark.parametrize("before", [401, 404, 425, 429, 302])
def test_a_business_error_after_attempts_that_were_certainly_not_taken_is_a_refusal(
    consumer: NewConsumer, route: Declare, harness: NewHarness, before: int
) -> None:
    route(consumer(answer(before), answer(before), answer(422)), "f1")
    assert kinds(harness().drain()) == ["Redelivered", "Redelivered", "refused"]


def test_a_certain_no_does_not_undo_an_earlier_maybe(
    consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    route(consumer(answer(503), answer(429), answer(422)), "f1")
    assert kinds(harness().drain()) == ["Redelivered", "Redelivered", "maybe-delivered"]


def test_a_409_after_an_attempt_that_may_have_been_taken_may_mean_still_at_work(
    consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    route(consumer(reset, answer(409), answer(409), answer(200)), "f1")
    assert kinds(harness().drain()) == ["Redelivered", "Redelivered", "Redelivered", "Completed"]


def test_a_409_to_the_end_of_the_policy_is_maybe_delivered(
    consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    shop = consumer(reset, otherwise=answer(409))
    route(shop, "f1", redelivery=Redelivery.fixed(every_seconds=1, times=3))
    assert kinds(harness().drain()) == ["Redelivered", "Redelivered", "Redelivered", "maybe-delivered"]


def test_the_stamp_is_on_the_disk_before_the_first_byte_leaves(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    shop = consumer(answer(200))
    route(shop, "f1")
    seen: list[dict[str, int]] = []
    shop.on_request = lambda request: seen.append(stamps(app, request.headers["message-id"]))
    harness().drain()
    assert [list(each) for each in seen] == [shop.ids]
    assert not stamps(app, shop.ids[0])


def test_no_transaction_is_open_while_the_consumer_works(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    """Another writer needs no wait, not even on SQLite, which has one at a time."""
    shop = consumer()
    endpoint = route(shop, "f1")
    worker = harness()
    seen: list[bool] = []

    def look(request: Request) -> None:
        seen.append(worker.access.session.is_begun)
        if len(seen) == 1:
            app.start(endpoint, Posted(msgspec.Raw(BODY)), flow_id="f2")

    shop.on_request = look
    assert kinds(worker.drain()) == ["Completed", "Completed"]
    assert seen == [False, False]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_delivery_that_may_have_been_taken_three_days_ago_is_not_sent_again_without_again(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, clock: ManualClock, is_late: bool
) -> None:
    shop = consumer(silence)
    route(shop, "f1", timeout_seconds=seconds_for(silence))
    worker = harness()
    assert isinstance(worker.run_one(), Redelivered)
    clock.advance(COPY_HORIZON / SECOND + (1 if is_late else -60))
    assert kinds(worker.drain()) == (["maybe-delivered"] if is_late else ["Completed"])
    if not is_late:
        return
    assert len(shop.requests) == 1
    session = worker.access.session
    with pytest.raises(ReplayRefused, match="--again"):
        freeze(session, [Selection("all")], clock=clock, who="ann")
    replay = freeze(session, [Selection("all")], clock=clock, who="ann", may_send_again=True)
    assert replay is not None
    queue_commit = worker.transaction._queue_commit
    assert sum(len(each.letters) for each in run_replay(queue_commit, replay, stop=NeverStops(), who="ann")) == 1
    shop.script = [answer(422)]
    # It is sent, and the first attempt is not forgotten.
    assert kinds(worker.drain()) == ["maybe-delivered"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), ("0", 1), ("999999", 3600), ("soon", 1), ("-5", 1), ("1e3", 1), ("²", 1), ("", 1)],
)
def test_retry_after_is_kept_up_to_an_hour(
    consumer: NewConsumer, route: Declare, harness: NewHarness, value: str, seconds: float
) -> None:
    route(consumer(answer(503, Retry_After=value)), "f1", redelivery=Redelivery.fixed(every_seconds=1, times=2))
    outcome = harness().run_one()
    assert isinstance(outcome, Redelivered)
    assert seconds * SECOND <= outcome.after <= max(seconds, 1.2) * SECOND


def test_retry_after_may_be_a_date(
    consumer: NewConsumer, route: Declare, harness: NewHarness, clock: ManualClock
) -> None:
    date = formatdate(clock.now() / SECOND + 90, usegmt=True)
    route(consumer(answer(429, Retry_After=date)), "f1")
    outcome = harness().run_one()
    assert isinstance(outcome, Redelivered)
    assert 89 * SECOND <= outcome.after <= 91 * SECOND


@pytest.mark.parametrize(
    ("act", "settings", "kind"),
    [
        (answer(409), {"statuses": {409: "taken"}}, "Completed"),
        (answer(404), {"statuses": {"404": "refused"}}, "refused"),
        (answer(200), {"statuses": {200: "failed"}}, "Redelivered"),
        (answer(422), {"statuses": {422: "failed"}}, "Redelivered"),
        (answer(503), {"statuses": {503: "refused"}}, "refused"),
        (answer(200, X_Error="closed"), {"error_header": "x-error"}, "refused"),
        (answer(200, X_Error=""), {"error_header": "X-Error"}, "Completed"),
        (answer(500, X_Error="closed"), {"error_header": "X-Error"}, "refused"),
        (answer(200, b'{"error": {"code": "closed"}}'), {"error_field": "error.code"}, "refused"),
        (answer(200, b'{"error": {"code": null}}'), {"error_field": "error.code"}, "Completed"),
        (answer(200, b'{"error": "closed"}'), {"error_field": "error.code"}, "Completed"),
        (answer(200, b"[" * 100_000), {"error_field": "error"}, "Completed"),
        (answer(200, b'{"error": 1}'), {"error_field": "error", "statuses": {200: "taken"}}, "refused"),
    ],
)
def test_a_route_says_what_answers_mean(
    consumer: NewConsumer, route: Declare, harness: NewHarness, act: Act, settings: dict[str, object], kind: str
) -> None:
    route(consumer(act), "f1", **settings)
    outcome = harness().run_one()
    assert kinds([outcome]) == [kind]


def test_an_answer_that_is_too_long_to_look_for_its_error_may_be_one_of_a_taken_message(
    consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    long = answer(200, b" " * (ANSWER_BYTES_MAX + 1) + b'{"error": 1}')
    route(consumer(long, answer(422)), "f1", error_field="error")
    assert kinds(harness().drain()) == ["Redelivered", "maybe-delivered"]


def test_no_log_shows_a_secret_of_the_route_or_a_frame_of_the_client(
    consumer: NewConsumer, route: Declare, harness: NewHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shop = consumer(reset, answer(500, b"down", Set_Cookie="session=canary"), half, silence)
    route(
        shop,
        "f1",
        timeout_seconds=seconds_for(silence),
        headers={"Authorization": "Bearer canary"},
        redelivery=Redelivery.fixed(every_seconds=1, times=3),
    )
    worker = harness()
    outcomes = worker.drain()
    assert kinds(outcomes)[-1] == "exhausted"
    assert worker.running is None
    for each in outcomes:
        log_outcome(CLAIM, each)
    assert not [record for record in caplog.records if hasattr(record, "stack")]
    (letter,) = worker.dead_letters()
    shown = [caplog.text, letter.stack, repr(letter.causes), *(each.detail or "" for each in worker.history("f1"))]
    for text in shown:
        assert "canary" not in text
        assert "httpcore" not in text


def test_the_text_of_any_type_is_what_the_consumer_gets(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    shop = consumer()
    endpoint = route(shop)
    app.start(endpoint, Posted(msgspec.Raw(b'{"b":1, "a": 1.50}')), flow_id="f1")
    harness().drain()
    assert shop.requests[0].body == b'{"b":1, "a": 1.50}'
