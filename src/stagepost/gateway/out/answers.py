"""Decide what a consumer's answer means. Pure functions.

``taken``       the message is delivered
``refused``     a business error: the consumer has not taken the message, and never will
``misplaced``   the route leads nowhere: a wrong URL, missing rights, a redirect. Fails like any other attempt
``failed``      the consumer could not take it now; another attempt may succeed
"""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.flow.texts import one_line
from stagepost.gateway.out.client import Answer
from stagepost.gateway.out.delivery import Delivery

Meaning = Literal["taken", "refused", "misplaced", "failed"]

REFUSING = frozenset({400, 409, 410, 413, 415, 422})
# The consumer says that it did not begin, or a first copy is at work.
NOT_BEGUN = frozenset({425, 429})
TIMED_OUT = 408
CONFLICT = 409
SERVER_ERRORS = range(500, 600)

RETRY_AFTER_SECONDS_MAX = 3600.0
EXCERPT_LENGTH = 200


def meaning_of(answer: Answer, delivery: Delivery) -> Meaning:
    """Return the meaning of an answer, by the route's own statuses first."""
    configured = delivery.meanings.get(answer.status)
    if configured is not None and configured != "taken":
        return configured
    if delivery.error_field is not None and not answer.is_whole:
        # The part that was not read may name an error.
        return "failed"
    if _names_error(answer, delivery):
        return "refused"
    if configured is not None or 200 <= answer.status < 300:  # noqa: PLR2004 - the class of success
        return "taken"
    if answer.status in REFUSING:
        return "refused"
    if answer.status in NOT_BEGUN or answer.status == TIMED_OUT or answer.status in SERVER_ERRORS:
        return "failed"
    return "misplaced"


def may_be_taken(answer: Answer) -> bool:
    """Say whether a consumer that failed with this answer may have taken the message before it failed."""
    return not answer.is_whole or answer.status == TIMED_OUT or answer.status in SERVER_ERRORS


def retry_after(answer: Answer, now: int) -> float:
    """Return the seconds that the consumer asks for, at most an hour; 0 if it asks for none."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        moment = to_microseconds(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max((moment - now) / SECOND, 0.0), RETRY_AFTER_SECONDS_MAX)


def excerpt(answer: Answer) -> str:
    """Return the beginning of the body as one line, for the journal and the dead letter."""
    return one_line(answer.body[: 4 * EXCERPT_LENGTH].decode(errors="replace"), EXCERPT_LENGTH)


def _names_error(answer: Answer, delivery: Delivery) -> bool:
    if delivery.error_header is not None and answer.headers.get(delivery.error_header.lower()):
        return True
    return delivery.error_field is not None and bool(_field(answer.body, delivery.error_field))


def _field(body: bytes, path: str) -> Any:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found
