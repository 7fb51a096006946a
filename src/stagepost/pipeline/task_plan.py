"""The plan by which the tasks of a job load the app."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkFiles, TaskContext

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import as_sentence
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import Place

PACKED = (".zip", ".egg")
CODE = (".py", *PACKED)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of a job. It is pickled to the tasks, so it holds no connection and no open file.

    ``folder`` holds the app's module on the driver. An executor may have another folder, and the files of
    ``--py-files`` or ``--archives`` instead.
    """

    app: str
    folder: str
    place: Place

    def load(self) -> Engine:
        """Load the app, on the driver or in a task. Raises ``DeclarationError``."""
        try:
            engine = engine_of(load_app(self.app, Path(self.folder)))
        except DeclarationError as error:
            if TaskContext.get() is None or not isinstance(error.__cause__, ImportError):
                raise
            raise DeclarationError(_cannot_import(self.app, error.__cause__, shipped())) from error
        engine.databases.place = self.place
        return engine


def import_shipped(folder: str) -> None:
    """Let this process import from the packed code in Spark's folder of files.

    Spark does this for tasks with functions. For the processes of a data source it adds single modules alone.
    """
    for file in sorted(Path(folder).glob("*")):
        if file.suffix in PACKED and str(file) not in sys.path:
            sys.path.insert(1, str(file))


def shipped() -> list[str]:
    """Return the names of the files of code that came to this executor with the job."""
    folder = Path(SparkFiles.getRootDirectory())
    return sorted(each.name for each in folder.glob("*") if each.suffix in CODE and each.is_file())


def _cannot_import(app: str, cause: ImportError, files: list[str]) -> str:
    module = app.partition(":")[0]
    problem = f"the executor on {socket.gethostname()} cannot import the app {app}: {as_sentence(cause)}"
    if files:
        return (
            f"{problem} It got {', '.join(files)}, which lacks that module. A zip must hold {module.partition('.')[0]} "
            "at its top, and the modules that it imports. Packages with compiled code need an environment: --archives "
            "environment.tar.gz#environment."
        )
    return (
        f"{problem} Ship the app with --py-files myapp.py or --py-files mypackage.zip, or with packages of its own as "
        "an environment: --archives environment.tar.gz#environment. docs/pipeline.md shows both."
    )
