"""The retention that an app declares: by message type, by stage, and by kind of row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from stagepost.flow.clock import SECONDS_MAX
from stagepost.flow.errors import DeclarationError
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.retention import BROKER_HOURS, KINDS, scope_of_kind

HOUR_SECONDS = 3600
_SPAN = re.compile(r"([1-9][0-9]{0,8})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


class KeptScope(NamedTuple):
    """The ids of one address: the message types that it takes, and its own retention in hours, if it has one."""

    address: str
    types: tuple[type, ...]
    hours: int | None = None


class DeclaredRetention:
    """The ``retention=`` of an app, checked. Raises ``DeclarationError``."""

    def __init__(self, declared: Mapping[Any, str | timedelta]) -> None:
        if not isinstance(declared, Mapping):
            raise DeclarationError(
                f"retention= of an app takes a dict, such as {{Order: '30d', 'journal': '90d'}}, not {declared!r}"
            )
        self._by_type: dict[type, int] = {}
        self._by_kind: dict[str, int] = {}
        for key, value in declared.items():
            if isinstance(key, type):
                self._by_type[key] = hours_of(f"retention of {key.__qualname__}", value)
            elif key in KINDS:
                hours = self._by_kind[scope_of_kind(key)] = hours_of(f"retention of {key!r}", value)
                if key == "broker" and hours < BROKER_HOURS:
                    raise DeclarationError(
                        f"retention of 'broker' is {hours} hours, and a sender that lost its broker's answer may "
                        f"publish a copy for {BROKER_HOURS} hours. Give it '7d' or more."
                    )
            else:
                raise DeclarationError(
                    f"retention= of an app has {key!r}; its keys are message types, and the names {', '.join(KINDS)}"
                )

    def of(self, scope: KeptScope) -> int | None:
        """Return the hours of an address: its own, else the longest of its types. None for the default."""
        by_type = [self._by_type[each] for each in scope.types if each in self._by_type]
        return max(by_type, default=None) if scope.hours is None else scope.hours

    def by_scope(self, scopes: Iterable[KeptScope]) -> dict[str, int]:
        """Return the declared hours of each scope, those of the kinds included."""
        found = {each.address: self.of(each) for each in scopes}
        return self._by_kind | {address: hours for address, hours in found.items() if hours is not None}


def hours_of(what: str, value: object) -> int:
    """Return a span in whole hours. Raises ``DeclarationError``, which begins with ``what``."""
    seconds: float = 0
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and (found := _SPAN.fullmatch(value)):
        seconds = int(found[1]) * _HOURS[found[2]] * HOUR_SECONDS
    if not HOUR_SECONDS <= seconds <= SECONDS_MAX or seconds % HOUR_SECONDS:
        raise DeclarationError(
            f"{what} must be a span of whole hours, at most ten years, such as '12h', '30d', '2w' or a timedelta, not "
            f"{value!r}"
        )
    return int(seconds) // HOUR_SECONDS


def check_horizon(address: str, hours: int | None, redelivery: Redelivery, time_limit_seconds: float) -> None:
    """Raise ``DeclarationError`` for ids that are kept for less time than a message may be redelivered."""
    horizon = redelivery.horizon_seconds(time_limit_seconds)
    if hours is not None and hours * HOUR_SECONDS < horizon:
        raise DeclarationError(
            f"{address}: its retention of {hours} hours is shorter than its redelivery horizon of "
            f"{horizon / HOUR_SECONDS:.1f} hours, which is {redelivery.redeliveries + 1} attempts of up to "
            f"{time_limit_seconds:.0f} s and the delays between them. Set a longer retention, fewer redeliveries or a "
            "shorter time_limit."
        )
