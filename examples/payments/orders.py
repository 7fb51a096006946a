"""Write an input file with repeated, conflicting, malformed, refused and failing orders.

The same seed writes the same bytes.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from random import Random

from examples.payments.app import BANKS, DEADLY, LIMIT

HEADER = '"order_id";"account_id";"bank_to";"account_to";"amount";"k_symbol"'
SYMBOLS = ("SIPO", "UVER", "POJISTNE", "LEASING", " ")
GOOD = 4_000
REPEATED = 40
CONFLICTING = 10
MALFORMED = ("{id};17;YZ;87144583", "{id};17;YZ;87144583;12.50;SIPO;SIPO", "{id};seventeen;YZ;87144583;12.50;SIPO")
REFUSED = 5
FAILING = 3
DEADLY_ORDERS = 1


def write_orders(path: Path, seed: int) -> None:
    random = Random(seed)
    numbers = iter(range(100_001, 900_000))
    rows = [_row(random, next(numbers)) for _ in range(GOOD)]
    rows += [random.choice(rows) for _ in range(REPEATED)]
    rows += [_with_amount(random.choice(rows[:GOOD]), "0.01") for _ in range(CONFLICTING)]
    rows += [text.format(id=next(numbers)) for text in MALFORMED for _ in range(2)]
    rows += [_with_amount(_row(random, next(numbers)), str(LIMIT + 1)) for _ in range(REFUSED)]
    rows += [_row(random, next(numbers), bank="ZZ") for _ in range(FAILING)]
    rows += [_row(random, next(numbers), symbol=DEADLY) for _ in range(DEADLY_ORDERS)]
    random.shuffle(rows)
    path.write_text("\r\n".join([HEADER, *rows, ""]), encoding="utf-8")


def write_good_orders(path: Path, seed: int) -> None:
    """Write ``GOOD`` valid rows, and no other rows."""
    random = Random(seed)
    rows = [_row(random, number) for number in range(100_001, 100_001 + GOOD)]
    path.write_text("\r\n".join([HEADER, *rows, ""]), encoding="utf-8")


def _row(random: Random, number: int, bank: str | None = None, symbol: str | None = None) -> str:
    amount = Decimal(random.randint(100, 1_500_000)) / 100
    return ";".join(
        (
            str(number),
            str(random.randint(1, 4_500)),
            f'"{bank or random.choice(sorted(BANKS))}"',
            f'"{random.randint(10_000_000, 99_999_999)}"',
            f"{amount:.2f}",
            f'"{symbol or random.choice(SYMBOLS)}"',
        )
    )


def _with_amount(row: str, amount: str) -> str:
    cells = row.split(";")
    return ";".join((*cells[:4], amount, cells[5]))
