"""The summary of a report as plain text, for a notebook or a session of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.flow.texts import one_line

FINDINGS_SHOWN = 5
NAME_LENGTH_MAX = 100


def summary_of(
    report: object, verdict: str, counts: Mapping[str, int], findings: Mapping[str, Sequence[object]]
) -> str:
    """Return the verdict, the counts that are not 0, and the first ids or places of each kind of finding."""
    lines = [f"{type(report).__name__}: {one_line(verdict)}"]
    lines.append(
        "  " + (", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in counts.items() if number))
    )
    for name, found in findings.items():
        if found:
            more = f", … {len(found) - FINDINGS_SHOWN} more" if len(found) > FINDINGS_SHOWN else ""
            shown = ", ".join(one_line(str(each), NAME_LENGTH_MAX) for each in found[:FINDINGS_SHOWN])
            lines.append(f"  {name}: {shown}{more}")
    return "\n".join([*lines, "  as_dict() has all figures and findings"])
