"""``python -m examples.mistakes``, or with the names of some mistakes."""

from __future__ import annotations

import sys
from dataclasses import astuple

from examples.mistakes.app import MISTAKES
from examples.mistakes.count import count

HEADINGS = ("runs", "mail lost", "mail twice", "invoice twice", "others kept out", "wrong state")

wanted = sys.argv[1:] or MISTAKES
unknown = [each for each in wanted if each not in MISTAKES]
if unknown:
    sys.exit(f"{unknown[0]!r} is no mistake of this example: {', '.join(MISTAKES)}")
print(f"{'':20}", *(f"{each:>17}" for each in HEADINGS), sep="")
for name in ("", *wanted):
    print(f"{name or 'no mistake':20}", *(f"{each:17}" for each in astuple(count(name))), sep="")
