"""Run the chain with the gateway, and with each mistake: ``python -m examples.store_and_forward [MISTAKE …]``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples.store_and_forward.chain import CURE, KILLED_AFTER_READS, MISTAKES, ORDERS, Outcome, run

KILLS = 1 + len(KILLED_AFTER_READS)
HEADINGS = ("", "sent", "read", "reached", "lost", "doubled", "threads held", "out of order")


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in MISTAKES]
    if unknown:
        print(f"there is no mistake {unknown[0]!r}; there are {', '.join(MISTAKES)}", file=sys.stderr)
        return 2
    print(f"{ORDERS} orders. The service is killed {KILLS} times. The validator starts late, and is unreliable.\n")
    print(line(HEADINGS))
    for mistake in (None, *(names or MISTAKES)):
        with tempfile.TemporaryDirectory(prefix="store-and-forward-") as folder:
            print(line(cells(mistake, run(mistake, Path(folder), os.environ))), flush=True)
    return 0


def cells(mistake: str | None, found: Outcome) -> Sequence[object]:
    counts = (found.sent, found.read, found.reached, found.lost, found.doubled, found.held or "-", found.displaced)
    return (mistake or CURE, *counts)


def line(values: Sequence[object]) -> str:
    first, *others = values
    return f"{first!s:24}" + "".join(f"{each!s:>14}" for each in others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
