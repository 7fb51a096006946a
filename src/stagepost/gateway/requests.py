"""Read requests from strangers: header rules, and a body within its size and its time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive

from stagepost.gateway.limits import Limits
from stagepost.gateway.problems import Problem

VERSIONS = ("1.0", "1.1", "2", "3")
# Headers that decide who sends what. Two of one would be read differently by two programs.
SINGLE = (
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "stagepost-producer",
    "stagepost-signature",
    "stagepost-timestamp",
    "transfer-encoding",
)
# A body that is too large is read up to this size, so that its sender sees the answer and not a reset connection.
DISCARDED_MAX = 8_388_608
# The gzip format, for zlib.
GZIP = 31
JSON_TYPES = ("application/json", "application/cloudevents+json")
NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
BATCH_TYPES = ("application/json", "application/cloudevents-batch+json", *NDJSON_TYPES)


class Disconnected(Exception):
    """The client left before its whole body had arrived. It gets no answer, and nothing is stored."""


def check_headers(request: Request, limits: Limits) -> None:
    """Refuse another version of HTTP, and ambiguous or excessive headers. Raises ``Problem``."""
    headers, version = request.headers, request.scope["http_version"]
    if version not in VERSIONS:
        raise Problem("version-unsupported", f"the request is of HTTP/{version}")
    raw = headers.raw
    if len(raw) > limits.headers_max:
        raise Problem("headers-too-large", f"the request has {len(raw)} headers, and {limits.headers_max} are allowed")
    size = sum(len(name) + len(value) for name, value in raw)
    if size > limits.header_bytes_max:
        raise Problem("headers-too-large", f"the headers have {size} bytes, and {limits.header_bytes_max} are allowed")
    names = [name for name, _ in raw]
    for name in SINGLE:
        if names.count(name.encode()) > 1:
            raise Problem("header-repeated", f"the request has the header {name} more than once", field=name)
    if "content-length" in headers and "transfer-encoding" in headers:
        raise Problem("framing-invalid", "the request has Content-Length and Transfer-Encoding")
    if version == "1.0" and "transfer-encoding" in headers:
        raise Problem("framing-invalid", "HTTP/1.0 has no Transfer-Encoding")


def media_type(headers: Headers, allowed: Sequence[str]) -> str:
    """Return the body's media type. Raises ``Problem`` unless it is one of the allowed ones, in UTF-8."""
    given = headers.get("content-type", "")
    name, *parameters = [each.strip().lower() for each in given.split(";")]
    charset = next((each.partition("=")[2].strip('"') for each in parameters if each.startswith("charset=")), "utf-8")
    if name not in allowed or charset not in ("utf-8", "utf8"):
        raise Problem(
            "content-type-unsupported",
            f"the content type is {given!r:.100}, and this resource takes {', '.join(allowed)} in UTF-8",
            headers={"Accept": ", ".join(allowed)},
        )
    return name


async def read_body(receive: Receive, headers: Headers, limits: Limits, size_max: int) -> bytes:
    """Return the whole body. Raises ``Problem``, and ``Disconnected`` when the client leaves before its end."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise Problem(
            "content-encoding-unsupported",
            f"the content encoding is {encoding!r:.60}, and gzip is the only one allowed",
            headers={"Accept-Encoding": "gzip"},
        )
    try:
        async with asyncio.timeout(limits.body_seconds):
            data = await _read(receive, headers, size_max)
    except TimeoutError:
        raise Problem(
            "body-too-slow",
            f"the body did not arrive within {limits.body_seconds:g} s",
            headers={"Connection": "close"},
        ) from None
    return decompressed(data, size_max) if encoding == "gzip" else data


async def _read(receive: Receive, headers: Headers, size_max: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= size_max:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > max(DISCARDED_MAX, size_max):
                raise too_large(size_max)
        if not message.get("more_body", False):
            break
    if size > size_max:
        raise too_large(size_max)
    stated = headers.get("content-length")
    if stated is not None and stated.strip() != str(size):
        # The server should not have let it pass. A part of a message is no message.
        raise Problem("framing-invalid", f"the body has {size} bytes, and Content-Length says otherwise")
    return b"".join(chunks)


def decompressed(data: bytes, size_max: int) -> bytes:
    """Decompress a gzip body, and stop beyond ``size_max``. Raises ``Problem``."""
    decompressor = zlib.decompressobj(GZIP)
    try:
        body = decompressor.decompress(data, size_max + 1)
    except zlib.error as error:
        raise Problem("content-encoding-invalid", f"the body is not gzip: {error}") from error
    if len(body) > size_max:
        raise too_large(size_max)
    if not decompressor.eof or decompressor.unused_data:
        raise Problem("content-encoding-invalid", "the body's gzip data is cut off, or has more behind its end")
    return body


def too_large(size_max: int) -> Problem:
    """Return the problem of a body with more than ``size_max`` bytes."""
    return Problem("body-too-large", f"the body has more than {size_max} bytes", headers={"Connection": "close"})
