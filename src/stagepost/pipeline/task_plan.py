"""The plan by which the tasks of a job load the app."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.flow.errors import DeclarationError
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import Place


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
        folder = Path(self.folder)
        try:
            engine = engine_of(load_app(self.app, folder))
        except DeclarationError as error:
            if TaskContext.get() is None or isinstance(error.__cause__, ImportError) is False:
                raise
            raise DeclarationError(
                f"the executor on {socket.gethostname()} cannot import the app {self.app}: {error.__cause__}. Ship the "
                "app with --py-files myapp.py or --py-files mypackage.zip. Ship an app with packages of its own as an "
                "environment with --archives environment.tar.gz#environment. docs/pipeline.md shows both."
            ) from error
        engine.databases.place = self.place
        return engine
