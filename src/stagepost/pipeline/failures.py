"""Classify Spark's errors, and turn them into readable text."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.texts import as_sentence

# PySpark does not turn every failure of a Java task into an exception of its own. Calls to a Java process that has died
# raise errors of the network.
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
JAVA_ENDED = (
    "Spark's Java process has ended. If the log of the system says that memory was short, give Java another amount: "
    "--conf spark.driver.memory=SIZE"
)
UNREACHABLE = (
    "Each executor connects to the database by itself. If the driver reaches it, name a host that all executors can "
    "reach, let its firewall and pg_hba.conf admit them, and put password and service files on each of their machines"
)

_FRAME = re.compile(r"\s+(at |\.\.\. \d+ |File \"|\^|~)|Driver stacktrace|Traceback ")
_CALLING = re.compile(r"^An error occurred while calling \S+$")
_CLASS = re.compile(r"(: |^)(?:Caused by: )?(?:[a-z][\w$]*\.)+[A-Z]\w*(?:Exception|Error)?: ")
# The error of a SQLite file begins with its path. No executor connects to it.
_UNAVAILABLE = re.compile(rf"\b{StoreUnavailable.__name__}: (?!/)")
_STATE = re.compile(r"\s*SQLSTATE: \w+")


def describe_error(error: Exception) -> str:
    """Return the error and its innermost cause in one line, without stack traces and Java's class names."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return JAVA_ENDED
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not is_frame(line)]
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("Caused by: "):
            parts.append([])
        parts[-1].append(line.removeprefix(": "))
    first, *causes = (plain(" ".join(part)) for part in parts)
    # A call that got no answer has no other text than its own name.
    text = f"{first} ({causes[-1]})" if causes and causes[-1] not in first else first or JAVA_ENDED
    return f"{as_sentence(text)} {UNREACHABLE}" if _UNAVAILABLE.search(str(error)) else text


def is_cancelled(error: Exception) -> bool:
    """Return whether Spark ended the job because it was cancelled from outside."""
    return "[SPARK_JOB_CANCELLED]" in str(error)


def has_lost_checkpoint(error: Exception) -> bool:
    """Return whether an executor was lost with a checkpoint, whose rows cannot be read again as they were."""
    return "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND]" in str(error)


def is_frame(line: str) -> bool:
    """Return whether a line belongs to a stack trace."""
    return bool(_FRAME.match(line) or _CALLING.match(line) or line.startswith("    "))


def plain(text: str) -> str:
    """Return the text without Java's class names and SQL states."""
    return _STATE.sub("", _CLASS.sub(r"\1", text)).strip()
