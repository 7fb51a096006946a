"""Simulated histories, seed after seed, at several rates of faults and crashes."""

from __future__ import annotations

import logging
import time

from tests.simulation.test_histories import run_history
from tests.soak.campaign import Campaign

RATES = ((0.0, 0.1), (0.05, 0.05), (0.2, 0.0), (0.2, 0.2))


def run(*, histories: int = 20_000, seed: int = 1_000_000) -> Campaign:
    """Raises with the seed of the first history that goes wrong."""
    logging.disable(logging.CRITICAL)
    begin = time.monotonic()
    steps = 150
    for number in range(histories):
        fault_rate, crash_rate = RATES[number % len(RATES)]
        try:
            run_history(seed + number, steps=steps, fault_rate=fault_rate, crash_rate=crash_rate)
        except Exception as error:
            call = f"run_history({seed + number}, fault_rate={fault_rate}, crash_rate={crash_rate})"
            raise AssertionError(f"{call} replays what went wrong") from error
    logging.disable(logging.NOTSET)
    return Campaign(
        name=f"simulated histories, seeds from {seed}",
        operations=histories,
        faults=histories * steps,
        lost=0,
        doubled=0,
        buried=0,
        seconds=time.monotonic() - begin,
        note="operations are histories, faults are chances of one",
    )
