"""The result of an audit, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stagepost.pipeline.report.page import frame_of, page_of
from stagepost.pipeline.report.summary import summary_of

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit. Counts cover all messages; ``lost``, ``doubled`` and ``stuck`` list at most 100 each.

    The audit leaves out ``unseen`` waypoints, written from ``seen_until`` on. A transaction before them is still open,
    so the rows before them may change. ``is_complete`` says that all of them belong to windows that are not final yet.

    ``windows``    the balance of each window of origin, at most 1,000
    ``latency``    per stage, in milliseconds: the wait in the queue, and the run of the handler
    ``retention``  per stage: how late copies came, how long the ids of its messages should be kept, and its guard
    ``types``      per message type: the longest retention and the strictest guard of its stages
    ``growth``     the growth of journal and store per day, the days until the disk is full, and what is unknown
    ``in_doubt``   messages that a stage in a direct mode sent, and that no broker confirmed; neither lost nor proved
    ``doubted_count``  runs that ``best_effort`` repeated because their messages were in doubt
    ``reopened``   windows that were final in the audit before this one, and whose counts have changed since
    ``held``       started flows that have not reached the queue, so the journal does not have them yet; None if unknown
    ``continued_from``  the position of the audit that this one continues; None for a full audit. A double of a flow
                   that was settled before is found by a full audit only
    ``archived``   the number of waypoints that were read from the archive
    ``has_gap``    earlier waypoints were purged, and are not in this audit; None for one that continues another
    """

    url: str
    at: str
    seen_until: str
    unseen: int
    is_complete: bool
    waypoints: int
    flows: dict[str, int]
    lost_count: int
    doubled_count: int
    stuck_count: int
    in_doubt_count: int
    doubted_count: int
    stages: Rows
    windows: Rows
    latency: Rows
    dead_letters: Rows
    retention: Rows
    types: Rows
    growth: dict[str, Any]
    work: Rows
    lost: Rows = field(default_factory=list)
    doubled: Rows = field(default_factory=list)
    stuck: Rows = field(default_factory=list)
    in_doubt: Rows = field(default_factory=list)
    reopened: Rows = field(default_factory=list)
    continued_from: str | None = None
    held: int | None = None
    archived: int = 0
    has_gap: bool | None = None

    @property
    def is_clean(self) -> bool:
        return self.lost_count == 0 and self.doubled_count == 0

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"clean": self.is_clean, "complete": fields.pop("is_complete"), **fields}

    def as_html(self) -> str:
        """Return the report as one page of HTML that needs no other file."""
        return page_of(self.as_dict())

    def __repr__(self) -> str:
        """Return a summary for a session of Python, which would show all fields otherwise."""
        counts = {name: getattr(self, f"{name}_count") for name in ("lost", "doubled", "stuck")}
        complete = "" if self.is_complete else ", and the audit is not complete"
        verdict = "no message is lost or doubled" if self.is_clean else "messages are lost or doubled"
        return summary_of(
            self,
            f"{verdict}{complete}, in {self.url}",
            {**self.flows, **counts},
            {name: [row["flow_id"] for row in getattr(self, name)] for name in ("lost", "doubled")},
        )

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame of its own."""
        return frame_of(self.as_dict())
