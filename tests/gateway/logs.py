"""The JSON log of a gateway's processes, in which each line is one event with a code."""

from __future__ import annotations

import json


def unclear_lines(log: str) -> list[str]:
    """Return the lines without a code, and those with a stack or with a frame of the HTTP client or server."""
    return [each for each in log.splitlines() if not _is_clear(each)]


def _is_clear(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    foreign = ("Traceback", "httpcore", "hypercorn/", "canary")
    return bool(record.get("event")) and "stack" not in record and not any(each in line for each in foreign)
