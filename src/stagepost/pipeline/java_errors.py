"""Java's standard error, which is held while Spark starts: Java prints a stack trace if it refuses a setting."""

from __future__ import annotations

import os
import re
import threading

from stagepost.pipeline.failures import is_frame, plain
from stagepost.runtime.service import Service

STANDARD_ERROR = 2
CHUNK_BYTES = 65_536
# A Java process that has ended leaves no more than a pipe's content to read.
END_SECONDS = 5.0

_NOTICE = re.compile(r"WARNING|NOTE: |Picked up |Error: (Could not create the Java|A fatal exception)")
_UNCAUGHT = re.compile(r'^Exception in thread "[^"]*" ')


class JavaErrors:
    """Read the pipe ``reader`` in a thread. Pass the bytes on to our own standard error, unless they are held."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._held: bytearray | None = bytearray()
        self._service = Service("java-errors", self._read)
        self._service.start()

    def hold(self) -> None:
        """Keep the bytes that come from now on."""
        with self._lock:
            self._held = self._held or bytearray()

    def pass_on(self) -> None:
        """Pass on the held bytes, and those that come from now on."""
        with self._lock:
            held, self._held = self._held, None
            _write(bytes(held or b""))

    def drop(self) -> None:
        """Forget the held bytes, and hold those that come from now on."""
        with self._lock:
            self._held = bytearray()

    def reason(self) -> str:
        """Return why a Java process that has ended did not start, or an empty text."""
        self._service.join(END_SECONDS)
        with self._lock:
            return uncaught(bytes(self._held or b"").decode(errors="replace"))

    def wait(self) -> None:
        """Wait until the bytes of a Java process that has ended are passed on."""
        self._service.join(END_SECONDS)

    def _read(self) -> None:
        with os.fdopen(self._reader, "rb", buffering=0) as pipe:
            while chunk := pipe.read(CHUNK_BYTES):
                with self._lock:
                    if self._held is None:
                        _write(chunk)
                    else:
                        self._held += chunk


def uncaught(text: str) -> str:
    """Return the error in what Java printed, in one line, without stack traces, notices and Java's class names."""
    lines = [line for line in text.splitlines() if line.strip() and not is_frame(line) and not _NOTICE.match(line)]
    # Java may have no memory left for the error itself.
    errors = [error for line in lines if _UNCAUGHT.match(line) and (error := _UNCAUGHT.sub("", line).strip())]
    return plain(errors[0] if errors else " ".join(line for line in lines if not _UNCAUGHT.match(line)))


def _write(content: bytes) -> None:
    while content:
        try:
            content = content[os.write(STANDARD_ERROR, content) :]
        except OSError:
            # The reader of our standard error has gone. Java must not block on its own.
            return
