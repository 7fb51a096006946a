"""What a campaign tells at its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """``operations`` were done under ``faults``; what was ``lost``, ``doubled`` or ``buried`` should be nothing."""

    name: str
    operations: int
    faults: int
    lost: int
    doubled: int
    buried: int
    seconds: float
    note: str = ""

    @property
    def is_clean(self) -> bool:
        return (self.lost, self.doubled, self.buried) == (0, 0, 0)

    def __str__(self) -> str:
        verdict = "clean" if self.is_clean else "BROKEN"
        note = f"  ({self.note})" if self.note else ""
        return (
            f"{self.name}: {self.operations:,} operations under {self.faults:,} faults in {self.seconds:.0f} s, "
            f"lost {self.lost}, doubled {self.doubled}, buried {self.buried}: {verdict}{note}"
        )
