"""How worker processes log: a line of text or of JSON each, to standard error."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable

from stagepost.flow.texts import one_line, shortened

# What each thread says at each attempt, for as long as it lasts.
OF_AN_OUTAGE = "database-unavailable"
OUTAGE_SECONDS = 60.0
# A URL, or a file's name, behind which the error stands.
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
    """A line each, and below it the stack of a handler, where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-8s [%(process)d] %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = one_line(record.message)
        line = super().formatMessage(record)
        stack = getattr(record, "stack", None)
        return line if stack is None else f"{line}\n{stack.rstrip()}"


class OncePerOutage(logging.Filter):
    """Of a database that is away, a line a minute from each part of a process, which says how many it stands for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By logger and database: when it was said, and how often it was not since.
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) != OF_AN_OUTAGE:
            return True
        text = record.getMessage()
        # The relay's line must not hide that the stages' threads wait too. A message's id makes no other outage.
        place = PLACE.search(text)
        source = record.name, place[0] if place else ""
        with self._lock:
            now = self._monotonic()
            said_at, kept = self._said.get(source, (-OUTAGE_SECONDS, 0))
            if now - said_at < OUTAGE_SECONDS:
                self._said[source] = said_at, kept + 1
                return False
            self._said[source] = now, 0
        if kept:
            record.msg, record.args = f"{text} (and {kept} more times since this was said last)", ()
        return True


def configure(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(OncePerOutage())
    logging.basicConfig(level=level, handlers=[handler], force=True)
