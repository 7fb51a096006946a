"""``stagepost audit``: once, or again and again."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from stagepost.app.endpoints import check_address
from stagepost.cli.archives import archived_journal
from stagepost.cli.audit_report import print_line, print_report
from stagepost.cli.audit_series import AuditConflict, AuditSeries
from stagepost.cli.exits import BAD_NEWS, print_error, readable_errors
from stagepost.cli.findings import findings_of, keep, send
from stagepost.cli.interruption import StopRequest, stoppable
from stagepost.cli.job_progress import JobProgress, job_progress
from stagepost.cli.options import FiniteNumber, database_option, existing_store, json_option
from stagepost.cli.show import echo, reserve_stdout
from stagepost.cli.spark import cancel_jobs, is_usable, load_job, on_spark, run_job, session
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError, StagepostError, StoreUnavailable
from stagepost.pipeline.audited_store import AuditedStore
from stagepost.pipeline.report.advice import HOUR_SECONDS
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.audits import AuditFinding
from stagepost.ports.findings import counted
from stagepost.ports.journal import Position
from stagepost.ports.session import Session


@click.command()
@database_option
@on_spark
@click.option("--window", type=click.IntRange(1), default=60, show_default=True, help="Seconds of a window of origin.")
@click.option("--late", type=click.IntRange(0), default=300, show_default=True, help="Seconds until a window is final.")
@click.option(
    "--stuck", type=click.IntRange(1), default=600, show_default=True, help="Seconds until a waiting message is stuck."
)
@click.option(
    "--outage", type=click.IntRange(0), default=72, show_default=True, help="Hours of the longest outage to plan for."
)
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots."
)
@click.option(
    "--findings-to", metavar="ENDPOINT", help="Send each finding to this endpoint, once however often it is found."
)
@click.option(
    "--state",
    "state_folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Continue where the last audit with this folder ended.",
)
@click.option(
    "--every",
    "every_seconds",
    metavar="SECONDS",
    type=click.IntRange(1),
    help="With --state: audit again after so many seconds, until Ctrl-C.",
)
@click.option(
    "--free",
    "free_gib",
    metavar="GIB",
    type=FiniteNumber(min=0),
    help="GiB that are free for the store, where it cannot tell them itself.",
)
@click.option("--archive", metavar="FOLDER", help="Read also the lines of the store's archive, in a full audit.")
@click.option(
    "--keep",
    "keep_hours",
    type=click.IntRange(0),
    default=72,
    show_default=True,
    help="Hours for which --state keeps ended flows.",
)
@json_option
def audit(
    database: str | None,
    spark_options: SparkOptions,
    window: int,
    late: int,
    stuck: int,
    outage: int,
    html: Path | None,
    findings_to: str | None,
    state_folder: Path | None,
    every_seconds: int | None,
    free_gib: float | None,
    archive: str | None,
    keep_hours: int,
    as_json: bool,
) -> None:
    """Prove from the journal that each message was executed once, or set aside with its reason.

    Exits with 1 if a message is lost or doubled, or if an open transaction keeps final windows from being proved. The
    audit looks a second time for messages that seem lost: in the queue, the dead letters and the newest journal lines.

    With --every, each audit prints one line and its findings, and Ctrl-C ends the command.
    """
    with readable_errors(), reserve_stdout() as released:
        check_writable(html)
        if findings_to is not None:
            check_address(findings_to)
        if every_seconds is not None and state_folder is None:
            raise DeclarationError("--every needs --state FOLDER, so that each audit reads only what is new")
        job = load_job("audit")
        terms = job.AuditTerms(
            window_seconds=window,
            late_seconds=late,
            stuck_seconds=stuck,
            outage_seconds=outage * HOUR_SECONDS,
            keep_seconds=keep_hours * HOUR_SECONDS,
        )
        command = AuditCommand(job, terms, database, state_folder, free_gib, archive, findings_to, html)
        begun = command.begin()
        found = begun.store
        is_brief = every_seconds is None and job.is_brief(found.url, found.until, begun.former, found.archived)
        with (
            stoppable() as request,
            session("stagepost audit", spark_options, is_brief=is_brief) as spark,
            job_progress(spark, "stagepost audit") as shown,
        ):
            report = command.run_first(begun, every_seconds, spark, request, shown)
            while every_seconds is not None:
                with released():
                    if as_json:
                        echo(json.dumps(report.as_dict()))
                    else:
                        print_line(report.as_dict())
                report = command.run_later(every_seconds, spark, request, shown)
    if as_json:
        echo(json.dumps(report.as_dict()))
    else:
        print_report(report.as_dict())
        if html is not None:
            echo(f"\nthe page is in {html}")
    if not (report.is_clean and report.is_complete):
        raise click.exceptions.Exit(BAD_NEWS)


@dataclass(frozen=True, slots=True)
class BegunAudit:
    """The state of the store when an audit began, and the state that the last audit of the series left."""

    store: AuditedStore
    series: AuditSeries | None
    former: Any


@dataclass(frozen=True, slots=True)
class AuditCommand:
    """The audits of one command."""

    job: Any
    terms: Any
    database: str | None
    state_folder: Path | None
    free_gib: float | None
    archive: str | None
    findings_to: str | None
    html: Path | None

    def begin(self) -> BegunAudit:
        """Read the store. It needs no Spark, so a store that cannot be audited is refused before Java starts."""
        with existing_store(self.database) as (store, access):
            opened, clock = access.session, SystemClock()
            # The state is read before the position, so that it ends before it.
            series, former = None, None
            if self.state_folder is not None:
                begun = AuditSeries.begin(self.state_folder, opened, clock)
                series, former = begun.read_former(opened, self._read_state)
            found = AuditedStore.read(
                store,
                access,
                clock,
                free_gib=self.free_gib,
                archived_of=partial(self._archived, is_full=former is None),
            )
        if former is not None:
            former.check_end(found.until)
        return BegunAudit(found, series, former)

    def _archived(self, session: Session, *, is_full: bool) -> Any:
        return archived_journal(Path(self.archive), session) if self.archive and is_full else None

    def run(self, begun: BegunAudit, spark: Any, request: StopRequest, shown: JobProgress) -> Any:
        """Audit, keep the findings, and write the page. Return the report."""
        with abandoned_on_error(begun.series), self._overtaken_or_failed(begun.series):
            report = run_job(
                lambda: self.job.audit(
                    spark,
                    begun.store.url,
                    terms=self.terms,
                    former=begun.former,
                    **begun.store.arguments(),
                    save_to=None if begun.series is None else begun.series.folder,
                    describe=shown.describe,
                ),
                request,
                partial(cancel_jobs, spark),
                shown.look,
            )
        report = replace(report, held=begun.store.held)
        findings = findings_of(report.as_dict())
        with existing_store(self.database) as (_, access):
            keep_findings(access.session, findings, begun.store.at, begun.series, begun.store.until)
        if self.findings_to is not None:
            new = send(self.findings_to, self.database, findings)
            echo(f"{counted(new, 'new finding')} of {len(findings)} sent to {self.findings_to}", err=True)
        if self.html is not None:
            self.html.write_text(report.as_html(), encoding="utf-8")
        return report

    def _read_state(self, folder: Path) -> Any:
        return self.job.AuditState.read(folder, self.terms.window_seconds)

    @contextmanager
    def _overtaken_or_failed(self, series: AuditSeries | None) -> Iterator[None]:
        """Raise ``AuditConflict`` for an audit that failed because another one removed the state that it reads."""
        try:
            yield
        except self.job.AuditFailed as error:
            if series is not None:
                with existing_store(self.database) as (_, access):
                    is_overtaken = series.is_overtaken(access.session)
                if is_overtaken:
                    raise series.conflict() from error
            raise

    def run_first(
        self, begun: BegunAudit, seconds: int | None, spark: Any, request: StopRequest, shown: JobProgress
    ) -> Any:
        """Audit, and with ``seconds`` audit again if another audit of the series ended first."""
        try:
            return self.run(begun, spark, request, shown)
        except AuditConflict as error:
            if seconds is None:
                raise
            print_next(error, seconds)
        return self.run_later(seconds, spark, request, shown)

    def run_later(self, seconds: int, spark: Any, request: StopRequest, shown: JobProgress) -> Any:
        """Audit after so many seconds, and again after as many while an audit fails for a reason that may pass."""
        while True:
            wait(seconds, request, shown)
            try:
                return self.run(self.begin(), spark, request, shown)
            except (StoreUnavailable, AuditConflict, self.job.AuditFailed) as error:
                if not is_usable(spark):
                    raise
                print_next(error, seconds)


def print_next(error: StagepostError, seconds: int) -> None:
    print_error(error.code, f"{error} The next audit begins in {seconds} s.")


def wait(seconds: float, request: StopRequest, shown: JobProgress) -> None:
    """Wait for the next audit. Raises ``Stopped`` after a request to stop."""
    shown.describe(f"waiting {seconds} s for the next audit")
    is_over = threading.Event()
    run_job(lambda: is_over.wait(seconds), request, is_over.set, shown.look)


@contextmanager
def abandoned_on_error(series: AuditSeries | None) -> Iterator[None]:
    """Remove the state of an audit that fails or is interrupted."""
    try:
        yield
    except BaseException:
        if series is not None:
            series.abandon()
        raise


def keep_findings(
    session: Session, findings: list[AuditFinding], now: int, series: AuditSeries | None, until: Position
) -> None:
    """Keep the findings, and name the state of a series in the same commit."""
    if series is None:
        keep(session, findings, now)
    else:
        series.end(session, findings, until, now)


def check_writable(path: Path | None) -> None:
    """Raise ``DeclarationError`` if the page cannot be written, before Java starts."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise DeclarationError(f"--html {path}: the folder {folder} does not exist. Make it, or name another one.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DeclarationError(f"--html {path}: it cannot be written. Change its permissions, or name another file.")
