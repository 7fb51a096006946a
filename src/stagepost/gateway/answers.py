"""The answers of the gateway: JSON documents and problem documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from stagepost.gateway.acceptor import Answer, Receipt
from stagepost.gateway.problems import MEDIA_TYPE, Problem

# An answer is for its caller alone, and is what its type says.
SAFE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(content), status, {**SAFE_HEADERS, **(headers or {})}, media_type="application/json"
    )


def problem_response(problem: Problem, *, ends_connection: bool = False) -> Response:
    headers = {**SAFE_HEADERS, **problem.headers, **({"Connection": "close"} if ends_connection else {})}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    return Response(msgspec.json.encode(problem.document()), problem.status, headers, media_type=MEDIA_TYPE)


def not_allowed(method: str, allowed: str) -> Problem:
    return Problem("method-not-allowed", f"{method:.20} is not allowed here", headers={"Allow": allowed})


def members_of(answer: Answer) -> dict[str, Any]:
    """Return the members of an answer's document."""
    if isinstance(answer, Receipt):
        return {
            "status": answer.status,
            "id": answer.theirs,
            "message_id": answer.message_id,
            "digest": answer.digest,
        }
    return answer.document()


def batch_response(answers: list[Answer]) -> Response:
    """Answer a batch: 200 if each message is accepted or a duplicate, else 207 with each message's own status."""
    results = []
    for index, each in enumerate(answers):
        status = 200 if isinstance(each, Receipt) else each.status
        outcome = each.status if isinstance(each, Receipt) else "refused"
        results.append({"index": index, **members_of(each), "code_http": status, "status": outcome})
    retries = [each.retry_after for each in answers if isinstance(each, Problem) and each.retry_after is not None]
    headers = {"Retry-After": str(math.ceil(max(retries)))} if retries else {}
    all_well = all(isinstance(each, Receipt) for each in answers)
    return json_response({"results": results}, 200 if all_well else 207, headers)
