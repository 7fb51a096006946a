"""A log of a fault run is quiet: each line is one event with its code, and has no stack of a client or a socket."""

from __future__ import annotations

import json


def unquiet_lines(log: str) -> list[str]:
    """Return the lines of a JSON log that are no event of ours. What only informs needs no code."""
    return [line for line in log.splitlines() if not _is_quiet(line)]


def _is_quiet(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return "stack" not in record and (record["level"] == "info" or "event" in record)
