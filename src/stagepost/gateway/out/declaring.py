"""Declare the stage that delivers the messages of a route."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from stagepost.app.app import App, engine_of
from stagepost.app.endpoints import Endpoint
from stagepost.flow import codec, departing
from stagepost.flow.clock import SECOND
from stagepost.flow.context import Context
from stagepost.flow.errors import ConsumerRefused, DeclarationError, DeliveryFailed, MaybeDelivered
from stagepost.flow.target import Target
from stagepost.gateway.out.answers import CONFLICT, excerpt, may_be_taken, meaning_of, retry_after
from stagepost.gateway.out.client import Answer, Client, NoAnswer
from stagepost.gateway.out.delivery import Delivery
from stagepost.gateway.out.events import content_type, event_headers
from stagepost.gateway.out.signatures import signature_headers
from stagepost.gateway.posted import Posted
from stagepost.recovery.outbound import is_too_old

# Beside the time of the request: resolving the name, and the commit of the departure.
BESIDE_SECONDS = 60.0
TEXT_LENGTH_MAX = 2_000


class Refusal(msgspec.Struct, frozen=True):
    """The report that a consumer refused a message with a business error, so that the sender can undo its part.

    ``message_id``, ``flow_id``  the refused message's
    ``route``                    the address of the stage that delivered it
    ``status``, ``text``         the consumer's status, and the beginning of its body
    """

    message_id: str
    flow_id: str
    route: str
    status: int
    text: str


def deliver(app: App, name: str, delivery: Delivery, *, message: type = Posted) -> Endpoint[Any, Any]:
    """Declare the endpoint ``name``, whose messages of type ``message`` are posted to the delivery's URL.

    Each worker process has ``delivery.concurrency`` threads for it alone. Raises ``DeclarationError``.
    """
    courier = Courier(app, name, delivery)

    def post(ctx: Context, message: Any) -> None:
        courier.deliver(ctx, message)

    post.__annotations__ = {"ctx": Context, "message": message, "return": None}
    decorate = app.endpoint(
        name,
        redelivery=delivery.redelivery,
        time_limit=delivery.timeout_seconds + BESIDE_SECONDS,
        mode="single",
        pause_after=delivery.pause_after,
        threads=delivery.concurrency,
    )
    endpoint: Endpoint[Any, Any] = decorate(post)
    return endpoint


def check_takes_refusals(target: Target[Any, Any], route: str) -> None:
    """Check that an endpoint takes the reports of a route. Raises ``DeclarationError``."""
    if not target.takes(Refusal):
        raise DeclarationError(
            f"{target.address}, to which {route} reports, does not take a Refusal. Let its handler take one."
        )


class Courier:
    """Delivers the messages of one route. It commits nothing: its outcome decides how the stage's attempt ends."""

    def __init__(self, app: App, name: str, delivery: Delivery) -> None:
        self._app = app
        self._name = name
        self._delivery = delivery
        self._keys = delivery.keys
        self._clock = engine_of(app).clock

    @cached_property
    def _client(self) -> Client:
        # Made in the process that delivers, because a connection must not be shared with a forked one.
        return Client(self._delivery)

    @cached_property
    def _report_to(self) -> Target[Any, Any] | None:
        """The endpoint for reports, looked up once all endpoints are declared. Raises ``DeclarationError``."""
        name = self._delivery.report_to
        if name is None:
            return None
        if name not in engine_of(self._app).stages():
            # It is an endpoint of another app.
            return self._app.remote(name, Refusal)
        target = self._app.target(name)
        check_takes_refusals(target, self._name)
        return target

    def deliver(self, ctx: Context, message: Any) -> None:
        """Post the message. Returns once it is taken, and else raises the error that decides about the message."""
        left_at = departing.depart(ctx)
        if left_at is not None and is_too_old(left_at, self._clock.now()):
            raise MaybeDelivered(
                f"{self._host} may have taken it more than three days ago, and may no longer recognise a copy. Look "
                "for it there, then replay it with --again or delete it."
            )
        body = bytes(message.body) if isinstance(message, Posted) else bytes(codec.encode(message, type(message)))
        try:
            answer = self._client.post(self._headers(ctx, message, body), body)
        except NoAnswer as error:
            self._end(ctx, left_at, is_known=not error.may_be_taken)
            raise DeliveryFailed(f"{self._host}: {error}") from None
        self._conclude(ctx, answer, left_at)

    def _conclude(self, ctx: Context, answer: Answer, left_at: int | None) -> None:
        match meaning_of(answer, self._delivery):
            case "taken":
                departing.end_departure(ctx)
                departing.note(ctx, f"delivered, {answer.status}")
            case "refused" if left_at is None:
                departing.end_departure(ctx)
                text = f"{self._host} refused it with {answer.status}: {excerpt(answer)}"
                departing.refuse(ctx, ConsumerRefused(text), self._report_to, self._refusal(ctx, answer))
            case "refused":
                raise MaybeDelivered(
                    f"{self._host} answered {answer.status} after an earlier attempt that it may have taken: "
                    f"{excerpt(answer)}. Look for it there, then replay it with --again or delete it.",
                    may_retry=answer.status == CONFLICT,
                )
            case _:
                self._end(ctx, left_at, is_known=not may_be_taken(answer))
                wait = retry_after(answer, self._clock.now())
                raise DeliveryFailed(f"{self._host} answered {answer.status}: {excerpt(answer)}", wait)

    def _end(self, ctx: Context, left_at: int | None, *, is_known: bool) -> None:
        """Forget the departure of an attempt that was certainly not taken, unless an earlier one may have been."""
        if is_known and left_at is None:
            departing.end_departure(ctx)

    def _refusal(self, ctx: Context, answer: Answer) -> Refusal:
        text = answer.body[: 4 * TEXT_LENGTH_MAX].decode(errors="replace")[:TEXT_LENGTH_MAX]
        # No store keeps NUL in a text.
        return Refusal(ctx.message_id, ctx.flow_id, self._name, answer.status, text.replace("\0", "�"))

    def _headers(self, ctx: Context, message: Any, body: bytes) -> dict[str, str]:
        now = self._clock.now()
        attributes = message.attributes if isinstance(message, Posted) else {}
        defaults = {
            "id": ctx.message_id,
            "source": f"/{self._app.name}/{self._name}",
            "type": type(message).__qualname__ if not isinstance(message, Posted) else self._name,
            "time": ctx.started_at.isoformat().replace("+00:00", "Z"),
        }
        signed = signature_headers(self._keys, ctx.message_id, now // SECOND, body) if self._keys else {}
        return {
            "Content-Type": content_type(attributes),
            "User-Agent": "stagepost",
            "Message-Id": ctx.message_id,
            "Idempotency-Key": ctx.message_id,
            "Stagepost-Attempt": str(ctx.attempt),
            **event_headers(attributes, defaults),
            **signed,
            **self._delivery.headers,
        }

    @property
    def _host(self) -> str:
        return self._delivery.host
