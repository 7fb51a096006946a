"""Amounts: read exactly, or refused with the reason."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from stagepost.flow.amounts import DETAIL, detail_of_amount, read_amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("12.50", "12.5"), (" -7 ", "-7"), ("+3.", "3"), (".5", "0.5"), ("1.0E7", "10000000"), ("-0", "0"),
        ("0.1", "0.1"), ("1234567890123456.123456789012", "1234567890123456.123456789012"),
        ("1.50000000000000000000", "1.5"), ("0e999", "0"),
    ],
)  # fmt: skip
def test_an_amount_is_read_exactly_and_found_again_in_its_line(text: str, amount: str) -> None:
    assert str(read_amount(text)) == amount
    found = re.search(DETAIL, f"{detail_of_amount(read_amount(text))}; duplicate of 7")
    assert found is not None
    assert Decimal(found[1]) == Decimal(amount)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("12,50", "'12,50' is no amount: write it as 1234.56"), ("", "is no amount"), ("1_000", "is no amount"),
        ("NaN", "is no amount"), ("12 EUR", "is no amount"), ("٣", "is no amount"), ("--1", "is no amount"),
        ("12345678901234567", "at most 16 digits and 12 decimals"), ("1e400", "does not fit"),
        ("1e-99", "does not fit"),
        ("0.1234567890123", "does not fit"), ("1234567890123456.1234567890120000001", "does not fit"),
    ],
)  # fmt: skip
def test_what_is_no_exact_amount_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_amount(text)
