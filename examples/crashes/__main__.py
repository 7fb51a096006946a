"""Print the verdict on each careless stage, and on its cure."""

from __future__ import annotations

from examples.crashes.app import MISTAKES, crashes_of

for careless, cured in MISTAKES.items():
    for stage in (careless, cured):
        crashes = crashes_of(stage)
        wrong = [each for each in crashes if not each.is_exactly_once]
        print(f"{stage}: {len(wrong)} of {len(crashes)} crashes change its effects")
        if wrong:
            print(f"    {wrong[0]}")
