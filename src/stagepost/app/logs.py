"""How worker processes log: a line of text or of JSON each, to standard error."""

from __future__ import annotations

import json
import logging
import time

FIELDS = ("event", "message_id", "flow_id", "stage", "attempt", "owner")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)-8s [%(process)d] %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
