"""Messages of the tests of deliveries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Placed:
    order: str
    amount: int
