"""The problems that the gateway answers with: RFC 9457 documents with stable codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagepost.flow.errors import IllegalCall
from stagepost.flow.texts import shortened

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:stagepost:problem:"

# The statuses of a check's own refusals. The others have a meaning in the producer's contract.
REJECTION_STATUSES = (400, 402, 403, 404, 410, 422)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem. ``remedy`` is what the producer, or its operator, does about it."""

    status: int
    title: str
    remedy: str


SAME_ID = "Send the same request again later, with the same id."

KINDS: Mapping[str, Kind] = {
    # The request as HTTP
    "request-malformed": Kind(400, "The bytes are no valid request", "Send HTTP/1.1 as RFC 9112 says."),
    "coding-unsupported": Kind(501, "The transfer coding is not supported", "Send a length, or plain chunks."),
    "framing-invalid": Kind(400, "The request's framing is ambiguous", "Send one length: Content-Length or chunks."),
    "version-unsupported": Kind(505, "The version of HTTP is not supported", "Use HTTP/1.1."),
    "header-repeated": Kind(400, "A header is given twice", "Send the header once."),
    "headers-too-large": Kind(431, "The headers are too many or too large", "Send fewer or shorter headers."),
    "not-found": Kind(404, "There is no such resource", "Read the OpenAPI document at /openapi.json."),
    "route-unknown": Kind(404, "There is no such route", "Read the routes in /openapi.json."),
    "method-not-allowed": Kind(405, "The method is not allowed here", "Use the method of the Allow header."),
    "content-type-unsupported": Kind(415, "The content type is not supported", "Send JSON as application/json."),
    "content-encoding-unsupported": Kind(415, "The content encoding is not supported", "Send the body uncompressed."),
    "content-encoding-invalid": Kind(400, "The body cannot be decompressed", "Compress the body with gzip."),
    "body-too-large": Kind(413, "The body is too large", "Send smaller messages."),
    "body-too-slow": Kind(408, "The body did not arrive in time", SAME_ID),
    "batch-too-large": Kind(413, "The batch has too many messages", "Divide the batch."),
    # Authentication
    "credentials-missing": Kind(401, "The request has no credentials", "Send a key: Authorization: Bearer KEY."),
    "credentials-invalid": Kind(401, "The credentials are not valid", "Ask the operator for a key of this gateway."),
    "signature-expired": Kind(
        401, "The signature's time is too far off", "Set the clock, and sign each attempt by itself."
    ),
    "producer-not-allowed": Kind(403, "The producer may not use this route", "Ask the operator for the route."),
    # The id
    "id-missing": Kind(400, "The request has no message id", "Make an id, and keep it for all retries."),
    "id-invalid": Kind(400, "The message id is not valid", "Use 1 to 200 printable characters."),
    "id-field-missing": Kind(422, "A field of the message id is missing", "Fill the fields that form the id."),
    "id-field-invalid": Kind(422, "A field of the message id is not valid", "Use a text or a whole number."),
    "id-conflict": Kind(409, "The id was accepted before with another body", "Use a new id for a new message."),
    # The message
    "json-invalid": Kind(400, "The body is not valid JSON", "Send UTF-8 JSON (RFC 8259)."),
    "json-too-deep": Kind(400, "The JSON is nested too deeply", "Send a flatter message."),
    "batch-invalid": Kind(400, "The batch is not valid", "Send a JSON array or one JSON value a line."),
    "event-invalid": Kind(400, "The CloudEvent is not valid", "Send a CloudEvent of version 1.0."),
    "message-invalid": Kind(422, "The message does not fit the route's type", "Read the type in /openapi.json."),
    "schema-mismatch": Kind(422, "The message does not match the route's schema", "Read the schema in /openapi.json."),
    "store-refused": Kind(422, "The store cannot keep this message", "Use characters that the database can store."),
    # Later
    "rate-limited": Kind(429, "The producer sends too fast", SAME_ID),
    "queue-full": Kind(429, "Too many messages wait on this route", SAME_ID),
    "overloaded": Kind(503, "The gateway has too many requests", SAME_ID),
    "deadline-passed": Kind(503, "The request took too long, and nothing was accepted", SAME_ID),
    "outcome-unknown": Kind(503, "The message may or may not be accepted", SAME_ID),
    "store-busy": Kind(503, "The store is busy, and nothing was accepted", SAME_ID),
    "store-full": Kind(503, "The store has no room, and nothing was accepted", SAME_ID),
    "store-unavailable": Kind(503, "The store is unavailable, and nothing was accepted", SAME_ID),
    "check-failed": Kind(500, "The service's own check failed, and nothing was accepted", SAME_ID),
    "defect": Kind(500, "The gateway has a defect", SAME_ID),
    # Looking up
    "message-unknown": Kind(404, "No message with this id was accepted", "Send the message."),
}

RETRY_AFTER_SECONDS: Mapping[str, int] = {
    "overloaded": 1,
    "deadline-passed": 1,
    "outcome-unknown": 1,
    "store-busy": 1,
    "queue-full": 5,
    "store-unavailable": 5,
    "store-full": 30,
    "check-failed": 30,
    "defect": 30,
}


class Problem(Exception):
    """A refusal of a request or of a message. ``detail`` has the reason, ``field`` the place in the request.

    ``retry_after`` is in seconds. ``headers`` go into the answer.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.detail = shortened(detail)
        self.field = field
        kind = KINDS.get(code)
        self.status = 500 if kind is None else kind.status
        self.title = code if kind is None else kind.title
        self.remedy: str | None = None if kind is None else kind.remedy
        self.retry_after = RETRY_AFTER_SECONDS.get(code) if retry_after is None else retry_after
        self.headers = dict(headers or {})
        super().__init__(f"{code}: {detail}")

    @property
    def is_about_the_message(self) -> bool:
        """Say whether the message itself is refused, so that the id may have been accepted before."""
        return self.status in (*REJECTION_STATUSES, 409, 413)

    def document(self) -> dict[str, Any]:
        """Return the members of the problem document."""
        members: dict[str, Any] = {
            "type": f"{TYPE_PREFIX}{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.field is not None:
            members["field"] = self.field
        if self.remedy is not None:
            members["remedy"] = self.remedy
        return members


class Rejected(Problem):
    """A route's own check raises it to refuse a message, with the service's own error code.

    ``status`` is 422 by default, and one of 400, 402, 403, 404, 410 and 422. Raises ``IllegalCall`` for another one.
    """

    def __init__(
        self, code: str, detail: str, *, status: int = 422, field: str | None = None, remedy: str | None = None
    ) -> None:
        if status not in REJECTION_STATUSES:
            known = ", ".join(map(str, REJECTION_STATUSES))
            raise IllegalCall(f"a check rejects with one of the statuses {known}, not with {status!r}")
        super().__init__(code, detail, field=field)
        self.status = status
        self.title = "The service rejects the message"
        self.remedy = remedy
        self.retry_after = None
