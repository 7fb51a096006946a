"""The user's own settings of Spark, as the commands take them. They are checked before Java starts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import has_password

_SECRET = re.compile(r"(?i)secret|password|passwd|token|(?:access|account)[.]?key")
# These name a secret of Kubernetes, or the file that holds one.
_NAME_OF_SECRET = re.compile(r"^spark\.kubernetes\.(?:driver|executor)\.secret(?:s|KeyRef)\.|[fF]ile$")
_SECRET_IN_VALUE = re.compile(r"(?i)(?:secret|password|passwd|token|(?:access|account)[.]?key)\w*=")
_MASTER = re.compile(r"yarn|local(?:\[(?:\d+|\*)(?:\s*,\s*\d+)?\])?|local-cluster\[.*\]|[a-z][a-z0-9+.-]*://.+")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://")
MASTER = "spark.master"
TIME_ZONE = "spark.sql.session.timeZone"

# The answers of the jobs depend on these, so a user cannot change them.
REQUIRED = {
    # The pipeline computes with times in UTC.
    TIME_ZONE: "UTC",
    # The value 01 of a folder day=01 stays text, because the number 1 would give another flow id.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Spark kills the slower of two copies of a task. That would count as the death of the message that runs in it.
    "spark.speculation": "false",
}


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The user's choices for Spark.

    ``master``    Spark's master; None for that of spark-submit or of ``spark-defaults.conf``, else this machine
    ``settings``  Spark's own settings by name, without the master; they take precedence over all others
    ``py_files``  files of Python code for the executors: ``.py``, ``.zip`` or ``.egg``
    ``archives``  packed environments for the executors, such as ``environment.tar.gz#environment``
    """

    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    py_files: Sequence[str] = ()
    archives: Sequence[str] = ()

    @classmethod
    def read(
        cls, master: str | None, settings: Sequence[str], py_files: Sequence[str], archives: Sequence[str]
    ) -> SparkOptions:
        """Check the texts of the command line. Raises ``DeclarationError``."""
        given = dict(_setting(each) for each in settings)
        in_settings = given.pop(MASTER, None)
        return cls(
            _master(master or in_settings), given, _files("--py-files", py_files), _files("--archives", archives)
        )

    def put_on_path(self) -> None:
        """Let this process import from the local files of ``py_files``, because the driver needs the app too."""
        for each in self.py_files:
            path = Path(each)
            place = str((path.parent if path.suffix == ".py" else path).resolve())
            if not _REMOTE.match(each) and place not in sys.path:
                sys.path.append(place)


def is_on(value: str | None) -> bool:
    """Return whether Spark takes a setting as true, for which it ignores case and blanks."""
    return value is not None and value.strip().lower() == "true"


def _master(text: str | None) -> str | None:
    if text is not None and not _MASTER.fullmatch(text):
        raise DeclarationError(
            f"--master {text} is no address of a master. Name one such as spark://host:7077, yarn, "
            "k8s://https://host:6443 or local[4], or leave --master out to run on this machine."
        )
    return text


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise DeclarationError(f"--conf takes spark.name=value, such as spark.executor.memory=4g, and not {name!r}")
    if has_password(value):
        raise DeclarationError(
            f"--conf {name} contains a password, and every user of this machine can read a command line. Give the "
            "database to the command in the variable STAGEPOST_DATABASE or in stagepost.toml: executors get it from "
            "there."
        )
    if (_SECRET.search(name) and not _NAME_OF_SECRET.search(name)) or _SECRET_IN_VALUE.search(value):
        raise DeclarationError(
            f"--conf {name} holds a secret, and every user of this machine can read a command line. Write it in "
            "spark-defaults.conf in the folder SPARK_CONF_DIR, or give it to the executors in their environment."
        )
    if name in REQUIRED and REQUIRED[name].lower() != value.strip().lower():
        raise DeclarationError(f"--conf {name}={value} cannot be used: Stagepost needs {REQUIRED[name]} there")
    return name, value


def _files(option: str, texts: Sequence[str]) -> list[str]:
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if has_password(name):
            raise DeclarationError(
                f"{option}: an address contains a password, and every user of this machine can read a command line. "
                "Copy the file to this machine, or to storage that needs no password in its address."
            )
        if not _REMOTE.match(name) and not Path(name.partition("#")[0]).is_file():
            raise DeclarationError(f"{option}: there is no file {name.partition('#')[0]!r}")
    return names
