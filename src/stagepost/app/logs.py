"""Logging to standard error: each record is one line of text or of JSON."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable

from stagepost.flow.texts import one_line, shortened
from stagepost.transaction.database_wait import DATABASE_UNAVAILABLE

OUTAGE_SECONDS = 60.0
# The URL, or the file's name, that an error begins with.
PLACE = re.compile(r"(?<!\S)(?:\w+://\S*|/[^:]*)(?=: )")

FIELDS = ("event", "message_id", "flow_id", "stage", "attempt", "owner", "stack")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "text": shortened(record.getMessage()),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Formats a record as one line, followed by the handler's stack if the record has one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-8s [%(process)d] %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = one_line(record.message)
        line = super().formatMessage(record)
        stack = getattr(record, "stack", None)
        return line if stack is None else f"{line}\n{stack.rstrip()}"


class OncePerOutage(logging.Filter):
    """Passes one line a minute about an unavailable database, for each part of a process.

    The line has the number of suppressed lines.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By logger and database: the time of the last line, and the number of lines suppressed since.
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) != DATABASE_UNAVAILABLE:
            return True
        text = record.getMessage()
        # A line per logger: the relay's must not hide that stages wait too. A message id makes no other outage.
        place = PLACE.search(text)
        source = record.name, place[0] if place else ""
        with self._lock:
            now = self._monotonic()
            logged_at, suppressed = self._said.get(source, (-OUTAGE_SECONDS, 0))
            if now - logged_at < OUTAGE_SECONDS:
                self._said[source] = logged_at, suppressed + 1
                return False
            self._said[source] = now, 0
        if suppressed:
            record.msg, record.args = f"{text} (and {suppressed} more times since the last such line)", ()
        return True


def configure(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(OncePerOutage())
    logging.basicConfig(level=level, handlers=[handler], force=True)
