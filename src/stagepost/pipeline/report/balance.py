"""The balance of each window: sent messages against their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stagepost.flow.clock import to_datetime

Facts = Mapping[str, Any]

COUNTS = ("sent", "committed", "expired", "dead", "edited", "open")
SHARES = ("p50", "p95", "p99", "max")
LATENCIES = tuple(f"{name}_{share}" for name in ("wait", "run") for share in SHARES)
NO_FLOWS = {"flows": 0, "twins": 0}
NOTHING_LOST = {"lost": 0, "in_doubt": 0, "lost_open": 0}


def balance_rows(
    windows: Mapping[int, Facts],
    flows: Mapping[int, Facts],
    lost: Mapping[int, Facts],
    *,
    width_at: Callable[[int], int],
    final_before: int,
) -> list[dict[str, Any]]:
    """Return the balance of each window, in order. Windows are named by their begin; moments are in microseconds.

    ``windows``, ``flows`` and ``lost`` hold the facts of windows, as the transforms return them. sent = committed +
    expired + dead + edited + open. ``lost`` are some of dead and open, and ``in_doubt`` are others of open. A window
    is final if it ended at ``final_before`` or earlier, and if nothing of it waits or runs.
    """
    return [
        _balance(
            begin, begin + width_at(begin), row, flows.get(begin, NO_FLOWS), lost.get(begin, NOTHING_LOST), final_before
        )
        for begin, row in sorted(windows.items())
    ]


def _balance(begin: int, end: int, row: Facts, flow: Facts, missing: Facts, final_before: int) -> dict[str, Any]:
    is_final = end <= final_before and row["open"] == missing["lost_open"]
    return {
        "window": to_datetime(begin).isoformat(),
        "until": to_datetime(end).isoformat(),
        "flows": flow["flows"],
        **{name: row[name] for name in COUNTS},
        "lost": missing["lost"],
        "in_doubt": missing["in_doubt"],
        "doubled": row["doubled"] + flow["twins"],
        "doubted": row["doubted"],
        "failures": row["failures"],
        "digest": row["digest"],
        **{name: row[name] for name in LATENCIES},
        "state": "final" if is_final else "provisional",
    }
