"""``stagepost archive``: move old lines of the journal and old dead letters to Parquet files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click
from rich.table import Column, Table

from stagepost.cli.exits import fail, readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.show import console, echo, reserve_stdout
from stagepost.cli.spark import cancel_jobs, load_job, on_spark, run_job, session
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.archives import Manifest
from stagepost.ports.registry import require
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import count_hour
from stagepost.runtime.settings import ARCHIVE_VARIABLE, FILE, archive_of
from stagepost.transaction.queue_commit import committing


@click.command()
@click.argument("folder", required=False)
@click.option("--end", is_flag=True, help="Archive no longer: from now on the purge removes old lines and letters.")
@database_option
@on_spark
@json_option
def archive(folder: str | None, end: bool, database: str | None, spark_options: SparkOptions, as_json: bool) -> None:
    """Write old lines of the journal, and dead letters past their retention, to Parquet files in FOLDER.

    Then the command removes them from the store. FOLDER is the archive of one store. Default: STAGEPOST_ARCHIVE, or
    archive in stagepost.toml. After the first run the purge removes only what is archived.
    """
    with readable_errors(), reserve_stdout():
        with existing_store(database) as (store, access):
            require(store.address, "archives", "Use SQLite or PostgreSQL.")
            if end:
                _end(access)
                return
        place = archive_of(folder)
        if place is None:
            raise DeclarationError(
                f"no archive is named. Name its folder: stagepost archive FOLDER, or set {ARCHIVE_VARIABLE}, or write "
                f'archive = "FOLDER" in {FILE}.'
            )
        job = load_job("archive")
        with (
            stoppable() as request,
            session("stagepost archive", spark_options) as spark,
            job_progress(spark, "stagepost archive") as shown,
        ):

            def work() -> list[Manifest]:
                # The sessions are for the thread that opens them.
                with existing_store(database) as (store, access):
                    clock = SystemClock()
                    count_hour(access, clock)
                    return list(job.archive(spark, store, access, place, clock=clock, describe=shown.describe))

            manifests = run_job(
                work,
                request,
                partial(cancel_jobs, spark),
                shown.look,
            )
    if as_json:
        echo(json.dumps([_as_json(place, each) for each in manifests]))
    elif manifests:
        _show(place, manifests)
    else:
        echo(f"{store.url}: nothing is old enough to be archived")


def _end(access: Access) -> None:
    if access.session.archives.archive() is None:
        fail("the store has no archive")
    with committing(access.session):
        access.session.archives.set_archive(None)


def _as_json(place: Path, manifest: Manifest) -> dict[str, object]:
    names = ("kind", "first", "next", "rows", "end")
    values = {name: value for name, value in manifest._asdict().items() if name in names}
    return {**values, "folder": str(place / manifest.folder), "struck": len(manifest.struck)}


def _show(place: Path, manifests: list[Manifest]) -> None:
    table = Table("archived", Column("rows", justify="right"), "folder", box=None)
    for each in manifests:
        what = f"lines {each.first} to {each.next - 1}" if each.kind == "journal" else "dead letters"
        table.add_row(what, str(each.rows - len(each.struck)), each.folder)
    console().print(table)
    echo(f"the archive is {place}")
