"""What a task says if it cannot import the app. Spark is not needed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyspark import SparkFiles, TaskContext

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.task_plan import TaskPlan, import_shipped
from stagepost.runtime.settings import Place


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that came with the job, in a process that is a task."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(TaskContext, "get", object)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    return tmp_path


def text_of(app: str) -> str:
    with pytest.raises(DeclarationError) as caught:
        TaskPlan(app, "/the/drivers/folder", Place("sqlite:///none.db", None)).load()
    return str(caught.value)


@pytest.mark.usefixtures("files")
def test_without_shipped_code_the_text_advises_the_options() -> None:
    text = text_of("not_there:app")
    assert "cannot import the app not_there:app: No module named 'not_there'. Ship the app with --py-files" in text
    assert "--archives environment.tar.gz#environment" in text


def test_with_shipped_code_the_text_names_it_and_does_not_advise_what_was_done(files: Path) -> None:
    for name in ("other.zip", "more.py", "data.csv"):
        (files / name).touch()
    text = text_of("not_there.inside:app")
    assert "It got more.py, other.zip, which lacks that module. A zip must hold not_there at its top" in text
    assert "--py-files" not in text


def test_code_in_a_zip_that_came_with_the_job_is_imported_also_where_spark_does_not_add_it(files: Path) -> None:
    with ZipFile(files / "app.zip", "w") as packed:
        packed.writestr("module_in_a_zip.py", "text = 'shipped'")
    (files / "data.csv").touch()
    for _ in range(2):
        import_shipped(str(files))
    assert [each for each in sys.path if each.startswith(str(files))] == [str(files / "app.zip")]
    assert importlib.import_module("module_in_a_zip").text == "shipped"


@pytest.mark.usefixtures("files")
def test_what_is_no_missing_module_is_told_as_it_is(tmp_path: Path) -> None:
    assert text_of("json:dumps") == (
        "json:dumps is a function, not a stagepost.App: write json:dumps() if it makes an app. The module has no App."
    )
