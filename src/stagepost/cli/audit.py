"""``stagepost audit``"""

from __future__ import annotations

import json
from functools import partial

import click

from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.report import print_report
from stagepost.cli.show import answer_alone, progress, say
from stagepost.cli.spark import break_off, load_job, master_option, session, watched
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.store.memory.store import MemoryStore


@click.command()
@database_option
@master_option
@click.option("--window", type=click.IntRange(1), default=60, show_default=True, help="Seconds of a window of origin.")
@click.option("--late", type=click.IntRange(0), default=300, show_default=True, help="Seconds until a window is final.")
@click.option("--stuck", type=click.IntRange(1), default=600, show_default=True, help="Seconds until waiting is stuck.")
@json_option
def audit(database: str | None, master: str | None, window: int, late: int, stuck: int, as_json: bool) -> None:
    """Prove from the journal that each message was executed once, or set aside with its reason.

    Exits with 1 when something is lost or doubled, or when a transaction that stays open keeps what should be final
    from being proved. What looks lost is looked for again, in the queue, the dead letters and what the journal was told
    meanwhile, before it is called lost.
    """
    with readable_errors(), answer_alone():
        job = load_job("audit")
        store, access = open_for_reading(database)
        if store.url == MemoryStore.url:
            raise DeclarationError("the memory store lives in one process, and ends with it: there is nothing to audit")
        # In this order: what is written in between is read, and belongs to a window that is not over.
        at = SystemClock().now()
        until = access.session.reader.position()
        unseen = access.session.reader.unseen(until)
        count = access.session.reader.last_waypoint()
        access.session.close()
        terms = job.AuditTerms(window_seconds=window, late_seconds=late, stuck_seconds=stuck)
        with stoppable() as request, session("stagepost audit", master) as spark, progress() as shown:
            shown.add_task(f"auditing {count} waypoints")
            report = watched(
                lambda: job.audit(spark, store.address, until=until, at=at, terms=terms, unseen=unseen),
                request,
                partial(break_off, spark),
            )
    found = report.as_dict()
    if as_json:
        say(json.dumps(found))
    else:
        print_report(found)
    if not (report.is_clean and report.is_complete):
        raise click.exceptions.Exit(BAD_NEWS)
