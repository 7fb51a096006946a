"""One request to a consumer: the transaction around its work, and the answers that need no work."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stagepost.flow.errors import IllegalCall, InvalidId
from stagepost.gateway.receiver.received import (
    AnotherBody,
    AtWork,
    begin,
    is_in_transaction,
    keep_answer,
    record,
)

# The key of the connection in an ASGI scope and in a WSGI environment.
CONNECTION = "stagepost.connection"
ID_HEADER = "message-id"
BODY_MAX = 10 * 1_048_576
# A longer answer is not kept. A copy then gets its status alone.
ANSWER_MAX = 65_536
RETRY_SECONDS = 1

AT_WORK = 425
REASONS = {400: "Bad Request", 413: "Content Too Large", 422: "Unprocessable Content", 425: "Too Early",
           503: "Service Unavailable"}  # fmt: skip
SUCCESS = range(200, 300)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to the gateway."""

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def reason(self) -> str:
        return REASONS.get(self.status, "OK" if self.status in SUCCESS else "Unknown")


class Body:
    """A request's body. One that grows longer than ``size_max`` bytes has only its digest, and takes no memory."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        self._kept = bytearray()
        self._hash = hashlib.sha256()

    def add(self, part: bytes) -> None:
        self.size += len(part)
        self._hash.update(part)
        if self.is_too_long:
            self._kept.clear()
        else:
            self._kept += part

    @property
    def is_too_long(self) -> bool:
        return self.size > self.size_max

    @property
    def content(self) -> bytes:
        return bytes(self._kept)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Delivery:
    """The work for one message, in one transaction on a connection of its own."""

    def __init__(self, connect: Callable[[], Any], message_id: str, body: Body) -> None:
        self._connect = connect
        self._message_id = message_id
        self._body = body
        self.connection: Any = None

    def open(self) -> Answer | None:
        """Begin, and record the message. Returns the answer if there is no work to do: the transaction has ended then.

        Raises the driver's errors.
        """
        try:
            self.connection = self._connect()
            begin(self.connection)
            received = record(self.connection, self._message_id, self._body.digest)
        except InvalidId as error:
            return self._refused(400, str(error))
        except AnotherBody as error:
            return self._refused(422, str(error))
        except AtWork as error:
            return self._refused(AT_WORK, str(error), [("Retry-After", str(RETRY_SECONDS))])
        except BaseException:
            self.abandon()
            raise
        if received.is_new:
            if self._body.is_too_long:
                return self._refused(413, f"the body is longer than {self._body.size_max} bytes")
            return None
        self.abandon()
        kind = [("Content-Type", received.content_type)] if received.content_type else []
        return Answer(received.status or 200, received.answer, kind)

    def close(self, status: int, content_type: str | None, body: bytes) -> Answer | None:
        """Commit the work of a success, and roll back that of any other answer. Returns an answer in its place, if any.

        The answer may leave only afterwards.
        """
        try:
            if status not in SUCCESS:
                return None
            self._check_open()
            keep_answer(
                self.connection, self._message_id, status, content_type, body if len(body) <= ANSWER_MAX else b""
            )
            self.connection.commit()
        except IllegalCall:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the driver raises, the gateway sends the message again
            logger.warning("%s not committed: %s", self._message_id, error, extra={"event": "receiver-not-committed"})
            return Answer(503, b"", [("Retry-After", str(RETRY_SECONDS))])
        finally:
            self.abandon()
        return None

    def abandon(self) -> None:
        """Roll back what is not committed, and close the connection."""
        if self.connection is not None:
            try:
                self.connection.rollback()
            finally:
                self.connection.close()
                self.connection = None

    def _check_open(self) -> None:
        if not is_in_transaction(self.connection):
            raise IllegalCall(
                f"the application committed or rolled back the transaction of {self._message_id} itself, so a copy "
                "could do the work twice. Leave it to the receiver."
            )

    def _refused(self, status: int, detail: str, headers: list[tuple[str, str]] | None = None) -> Answer:
        self.abandon()
        return problem(status, detail, headers)


def problem(status: int, detail: str, headers: list[tuple[str, str]] | None = None) -> Answer:
    """Return an answer with problem details (RFC 9457)."""
    body = json.dumps({"title": REASONS[status], "status": status, "detail": detail}).encode()
    return Answer(status, body, [("Content-Type", "application/problem+json"), *(headers or [])])


def missing_id(header: str) -> Answer:
    return problem(400, f"the request has no header {header}, by which a copy would be recognised")
