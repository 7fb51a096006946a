"""The progress of streaming queries, as Spark reports it after each batch."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from stagepost.ports.findings import counted


class StreamProgress(StreamingQueryListener):
    """Keeps the newest report of each running query. Spark calls it in a thread of its own.

    ``unit`` is the name of one of the rows that the queries read, such as a file.
    """

    def __init__(self, unit: str = "row") -> None:
        self._unit = unit
        self._texts: dict[Any, str] = {}

    def text(self) -> str:
        """Return the newest batch of each running query, or an empty text before the first one."""
        return "; ".join(tuple(self._texts.values()))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        found = event.progress
        name = f"{found.name}: " if found.name else ""
        rate = f", {found.processedRowsPerSecond:,.1f} {self._unit}s/s" if found.numInputRows else ""
        self._texts[found.runId] = f"{name}batch {found.batchId}, {counted(found.numInputRows, self._unit)}{rate}"

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._texts.pop(event.runId, None)
