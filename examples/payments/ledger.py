"""Double-entry bookkeeping in whole hundredths: one transaction writes both entries of a posting."""

from __future__ import annotations

from decimal import Decimal

from stagepost import Context

# The account of money that has left a payer and has not reached a bank yet.
HELD = "held"


def hundredths(amount: Decimal) -> int:
    cents = amount * 100
    if cents != cents.to_integral_value():
        raise ValueError(f"{amount} has more than two decimals")
    return int(cents)


def reserve(ctx: Context, order_id: int, payer: int, cents: int) -> None:
    _post(ctx, order_id, "reserve", [(f"account:{payer}", -cents), (HELD, cents)])


def settle(ctx: Context, order_id: int, bank: str, account: str, cents: int) -> None:
    _post(ctx, order_id, "settle", [(HELD, -cents), (f"bank:{bank}:{account}", cents)])


def _post(ctx: Context, order_id: int, what: str, entries: list[tuple[str, int]]) -> None:
    for account, cents in entries:
        ctx.sql(
            "INSERT INTO posting (order_id, account, hundredths, what) VALUES (:order_id, :account, :cents, :what)",
            order_id=order_id,
            account=account,
            cents=cents,
            what=what,
        )
