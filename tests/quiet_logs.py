"""A log of a fault run is quiet: each line is one event with its code, and has no stack of a client or a server."""

from __future__ import annotations

import json

# Signs of a stack, of frames of an HTTP client or server, and of a secret of the tests.
FOREIGN = ("Traceback", "httpcore", "hypercorn/", "canary")


def unquiet_lines(log: str) -> list[str]:
    """Return the lines that are no event of ours."""
    return [line for line in log.splitlines() if not _is_quiet(line)]


def _is_quiet(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return bool(record.get("event")) and "stack" not in record and not any(each in line for each in FOREIGN)
