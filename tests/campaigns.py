"""What a fault campaign came to, in a line that pytest prints at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

# Takes the campaign's name, and its problems as ``Books.problems`` words them: "lost: …", "doubled: …".
Tell = Callable[[str, Sequence[str]], None]
PROPERTY = "campaign"
STUCK = "left"


def line_of(name: str, problems: Sequence[str]) -> str:
    kinds = Counter(problem.partition(":")[0] for problem in problems)
    lost, doubled, stuck = (kinds.pop(kind, 0) for kind in ("lost", "doubled", STUCK))
    others = "".join(f", {count} {kind}" for kind, count in kinds.items())
    return f"{name}: {lost} lost, {doubled} doubled, {stuck} stuck{others}"
