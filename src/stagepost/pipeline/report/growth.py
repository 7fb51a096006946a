"""The growth of a store, and the days until its disk is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stagepost.flow.clock import SECOND
from stagepost.pipeline.report.advice import DAY_SECONDS, HOUR_SECONDS
from stagepost.ports.export import DiskUsage

# A series of audits remembers the store's size of each hour for so long.
REMEMBERED_DAYS = 8

# A moment in microseconds, and the bytes that the store took then.
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store at the moment of an audit.

    ``is_purged``  lines of its journal were purged, so the store does not hold all that was written
    """

    usage: DiskUsage
    is_purged: bool = False


def growth_of(
    waypoints: int,
    messages: int,
    envelope_bytes: int,
    days: float,
    *,
    store: StoreSize | None,
    sizes: Sequence[Size],
) -> dict[str, Any]:
    """Return the growth per day, averaged over ``days``, and the days until the disk is full.

    ``sizes``     the store's sizes in a series of audits, in order, the present one included
    ``unknown``   in the result: what could not be found out, and why

    The growth in bytes is measured between two audits of a series. For a single audit it is the store's size over the
    time of its journal, as long as nothing was purged. Less than an hour tells nothing.
    """
    usage = DiskUsage(0, None, "the size of the store was not read") if store is None else store.usage
    unknown = [] if usage.free is not None else [f"the free space: {usage.why}"]
    per_day, measured_days = _measured(sizes), None
    if per_day is not None:
        measured_days = (sizes[-1][0] - sizes[0][0]) / SECOND / DAY_SECONDS
    elif store is not None and not store.is_purged and days >= HOUR_SECONDS / DAY_SECONDS:
        per_day = usage.used / days
    elif store is not None:
        why = "lines were purged while others came" if store.is_purged else "the journal is younger than an hour"
        unknown.append(f"the growth in bytes: {why}. Two audits with --state that lie an hour apart measure it")
    days_to_full = None
    if per_day is not None and per_day > 0 and usage.free is not None:
        days_to_full = usage.free / per_day
    return {
        "days": days,
        "waypoints_per_day": waypoints / days,
        "messages_per_day": messages / days,
        "envelope_bytes_per_day": envelope_bytes / days,
        "store_bytes": usage.used if store is not None else None,
        "free_bytes": usage.free,
        "store_bytes_per_day": per_day,
        "measured_days": measured_days,
        "days_to_full": days_to_full,
        "unknown": unknown,
    }


def remembered(sizes: Sequence[Size], now: Size) -> list[Size]:
    """Return the sizes that the next audit of a series compares with: one an hour, of the last days."""
    since = now[0] - REMEMBERED_DAYS * DAY_SECONDS * SECOND
    recent = [each for each in sizes if since <= each[0] < now[0]]
    return recent if recent and now[0] - recent[-1][0] < HOUR_SECONDS * SECOND else [*recent, now]


def _measured(sizes: Sequence[Size]) -> float | None:
    """Return the bytes a day between the first and the last size, or None if less than an hour lies between them."""
    if not sizes or sizes[-1][0] - sizes[0][0] < HOUR_SECONDS * SECOND:
        return None
    (begin, before), (end, after) = sizes[0], sizes[-1]
    return (after - before) / ((end - begin) / SECOND / DAY_SECONDS)
