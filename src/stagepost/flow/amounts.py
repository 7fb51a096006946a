"""Amounts, such as sums of money: decimal numbers that the journal and Spark hold exactly.

The journal has the amount of a committed message in the detail of its line.
"""

from __future__ import annotations

import re
from decimal import Decimal

# The bounds of one amount. Spark adds up ten billion of them exactly.
WHOLE_DIGITS = 16
DECIMALS = 12
# A whole detail is such a text, or begins with it. The group is the amount.
DETAIL = r"^amount (-?[0-9]+(?:\.[0-9]+)?)(?:;|$)"

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def read_amount(text: str) -> Decimal:
    """Parse an amount such as ``-12.50``. Raises ``ValueError`` with the reason."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r:.60} is no amount: write it as 1234.56, without other signs")
    return check_amount(Decimal(text.strip()))


def check_amount(amount: Decimal) -> Decimal:
    """Return the amount without zeros at its end. Raises ``ValueError`` if it cannot be held exactly."""
    if not amount.is_finite():
        raise ValueError(f"{amount} is no amount")
    if not amount:
        return Decimal(0)
    if not -DECIMALS <= amount.adjusted() < WHOLE_DIGITS:
        raise ValueError(_unfit(amount))
    whole, _, decimals = f"{amount:f}".partition(".")
    decimals = decimals.rstrip("0")
    if len(decimals) > DECIMALS:
        raise ValueError(_unfit(amount))
    return Decimal(f"{whole}.{decimals}" if decimals else whole)


def detail_of_amount(amount: Decimal) -> str:
    return f"amount {amount:f}"


def _unfit(amount: Decimal) -> str:
    return f"{str(amount)[:60]} does not fit: an amount has at most {WHOLE_DIGITS} digits and {DECIMALS} decimals"
