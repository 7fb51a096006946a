"""Start flows for the rows of a DataFrame, reconcile them, and audit a store, from Python in a session of your own.

from stagepost.pipeline.frames import audit, initiate, initiate_stream, reconcile

orders = spark.read.jdbc("jdbc:postgresql://shop/orders", "orders")
counts = initiate(orders, "myapp:app", "payments.pay", id_columns=["order_id"])
report = reconcile(orders, "postgresql://shop/payments", "payments.pay", id_columns=["order_id"], amount="amount")
audit(spark, "postgresql://shop/payments")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import SystemRandom

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.flow.clock import SystemClock, to_microseconds
from stagepost.flow.errors import DeclarationError
from stagepost.flow.ids import RandomIds
from stagepost.pipeline.archived_journal import archived_journal
from stagepost.pipeline.audited_store import AuditedStore
from stagepost.pipeline.jobs import initiate as job
from stagepost.pipeline.jobs.audit import AuditTerms
from stagepost.pipeline.jobs.audit import audit as audit_journal
from stagepost.pipeline.jobs.initiate import InitiationFailed, InitiationPlan
from stagepost.pipeline.jobs.keyed_rows import RowFiles
from stagepost.pipeline.jobs.reconcile import Service
from stagepost.pipeline.jobs.reconcile_rows import RowsReport, check_stage, reconcile_rows
from stagepost.pipeline.report.advice import HOUR_SECONDS
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.session import refuse_speculation, require_driver, require_one_host, time_zone
from stagepost.pipeline.staging import staged
from stagepost.ports.registry import driver_of
from stagepost.ports.runs import RunCounts
from stagepost.ports.store import outbox_apart
from stagepost.runtime.access import Access
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import Place

__all__ = [
    "AuditReport",
    "InitiationFailed",
    "RowsReport",
    "RunCounts",
    "audit",
    "initiate",
    "initiate_stream",
    "reconcile",
]


def initiate(
    frame: DataFrame,
    app: str,
    target: str,
    *,
    id_columns: Sequence[str],
    flow_prefix: str | None = None,
    message_type: str | None = None,
    reply_to: str | None = None,
    run_id: str | None = None,
    staging: str | None = None,
) -> RunCounts:
    """Start a flow for each row, once, however often this is called. Return the counts of the run.

    ``app``          ``MODULE:APP``, which executors can import too; its module is in the working folder or installed
    ``target``       the endpoint that each row is sent to; columns fill the fields of its message by name
    ``id_columns``   the columns whose values identify a row: texts, whole or decimal numbers, or dates
    ``flow_prefix``  flow ids are ``PREFIX:VALUE``; by default the target's name
    ``message_type`` the name of the rows' message type, where the target takes several
    ``reply_to``     the endpoint that gets the replies
    ``run_id``       the run to begin, or to continue; by default a new one
    ``staging``      a folder that driver and executors share. The rows are written there first, and deleted at the end.
                     A session on one machine needs none

    A row that does not fit the message, or whose id was accepted before with other content, is quarantined under
    ``run_id``. Raises ``DeclarationError`` for columns or a target that cannot be used, and for a session that runs
    copies of slow tasks. Raises ``InitiationFailed`` if a task failed too often; the next call continues.
    """
    engine = _engine(app)
    plan = _plan(engine, app, target, message_type, reply_to, run_id or engine.ids.mint())
    _check(frame, plan, id_columns)
    return _start(frame, plan, id_columns, flow_prefix or target, staging, "a DataFrame")


def initiate_stream(
    frame: DataFrame,
    app: str,
    target: str,
    *,
    checkpoint: str,
    id_columns: Sequence[str],
    flow_prefix: str | None = None,
    message_type: str | None = None,
    reply_to: str | None = None,
    staging: str | None = None,
    is_endless: bool = True,
) -> StreamingQuery:
    """Start a flow for each row of a streaming DataFrame. Return the running query.

    Each micro-batch is a run, whose id is ``QUERY:BATCH``. A batch that Spark runs again continues its run, and starts
    no flow twice, also after a crash and with a new checkpoint. ``checkpoint`` is the folder of the query's position.
    ``is_endless=False`` ends the query when the rows that are there now are done. The other arguments, and the errors,
    are as for ``initiate``. An error in a batch ends the query.
    """
    if not frame.isStreaming:
        raise DeclarationError("initiate_stream takes a DataFrame of spark.readStream; call initiate for this one")
    engine = _engine(app)
    prefix = flow_prefix or target
    _check(frame, _plan(engine, app, target, message_type, reply_to, ""), id_columns)

    def start(batch: DataFrame, number: int) -> None:
        run_id = run_of_batch(batch, number)
        source = f"batch {number} of the streaming query {run_id.partition(':')[0]}"
        _start(batch, _plan(engine, app, target, message_type, reply_to, run_id), id_columns, prefix, staging, source)

    writer = frame.writeStream.foreachBatch(start).option("checkpointLocation", checkpoint)
    return (writer if is_endless else writer.trigger(availableNow=True)).start()


def reconcile(
    frame: DataFrame,
    database: str,
    stage: str,
    *,
    id_columns: Sequence[str],
    amount: str | None = None,
    flow_prefix: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    staging: str | None = None,
    archive: str | Path | None = None,
) -> RowsReport:
    """Compare each row with the messages that ``stage`` committed, as ``stagepost reconcile FILE`` does.

    ``database``      the URL of the store whose journal is compared
    ``id_columns``, ``flow_prefix``  as for ``initiate``; an empty prefix for a column that holds whole flow ids
    ``amount``        the column of the amount that the stage records by ``ctx.record_amount``; None to compare ids
    ``since``, ``until``  the rows have the flows that began in this time. Moments without a zone are in UTC
    ``staging``       as for ``initiate``
    ``archive``       the archive of the store, to be read too

    Flows that wait in another database, where ``queue=`` names this one, seem lost until they have arrived here.
    Raises ``DeclarationError`` for columns or a stage that cannot be used, and ``ReconcileFailed`` if Spark gives up.
    """
    prefix = stage if flow_prefix is None else flow_prefix
    rows = RowFiles([], "parquet", id_columns, prefix, amount)
    rows.check_names(frame.columns)
    require_driver(frame.sparkSession)
    clock = SystemClock()
    store = driver_of(database).open_existing(database, "database")
    with closing(Access(store.session(), clock, open_apart=partial(outbox_apart, store))) as access:
        held = access.held().size
        service = Service.read(database, access.session, clock, None if archive is None else Path(archive))
    check_stage(service, stage)
    folder = f"stagepost-reconcile-{RandomIds(clock, SystemRandom()).mint()}"
    with staged(frame.select(*(F.col(f"`{name}`") for name in dict.fromkeys(rows.columns))), staging, folder) as place:
        return reconcile_rows(
            frame.sparkSession,
            service,
            replace(rows, files=[place]),
            stage,
            held=held,
            since=_microseconds(since),
            until=_microseconds(until),
        )


def audit(
    spark: SparkSession,
    database: str,
    *,
    window_seconds: int = 60,
    late_seconds: int = 300,
    stuck_seconds: int = 600,
    outage_hours: int = 72,
    archive: str | Path | None = None,
    free_gib: float | None = None,
) -> AuditReport:
    """Audit a store, as ``stagepost audit`` does. The report is a page in a notebook; ``as_html()`` returns the page.

    ``database``  the URL of the store whose journal is audited
    The other arguments are as the command's options. The findings are not kept in the store, and no state is kept.

    Raises ``StoreUnavailable`` for a store that does not exist, and ``AuditFailed`` if Spark gives up.
    """
    require_driver(spark)
    store = driver_of(database).open_existing(database, "database")
    require_one_host(spark, Place(store.address, None))
    with closing(Access(store.session(), SystemClock(), open_apart=partial(outbox_apart, store))) as access:
        found = AuditedStore.read(
            store,
            access,
            SystemClock(),
            free_gib=free_gib,
            archived_of=lambda session: None if archive is None else archived_journal(Path(archive), session),
        )
    terms = AuditTerms(
        window_seconds=window_seconds,
        late_seconds=late_seconds,
        stuck_seconds=stuck_seconds,
        outage_seconds=outage_hours * HOUR_SECONDS,
    )
    return replace(audit_journal(spark, found.url, terms=terms, **found.arguments()), held=found.held)


def run_of_batch(batch: DataFrame, number: int) -> str:
    """Return the run id of a micro-batch. The query's id lives in its checkpoint."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return f"{query}:{number}"


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else to_microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _engine(app: str) -> Engine:
    return engine_of(load_app(app))


def _plan(
    engine: Engine, app: str, target: str, message_type: str | None, reply_to: str | None, run_id: str
) -> InitiationPlan:
    return InitiationPlan(
        app,
        str(Path.cwd()),
        engine.databases.place,
        target,
        reply_to,
        run_id,
        "parquet",
        is_by_content=True,
        message_type=message_type,
    )


def _check(frame: DataFrame, plan: InitiationPlan, id_columns: Sequence[str]) -> None:
    """Check what is known before the first row is read. Raises ``DeclarationError``."""
    require_driver(frame.sparkSession)
    # The later of two attempts at a task counts, and Spark may kill that one.
    refuse_speculation(frame.sparkSession, "the run would have the counts of a killed one")
    require_one_host(frame.sparkSession, plan.place)
    job.check_request(plan, [], id_columns)
    row_type = job.type_of_rows(plan.load().target_anywhere(plan.target), plan.message_type)
    job.check_names(frame.columns, plan.target, row_type, id_columns)
    job.check_types(frame.schema, id_columns, time_zone(frame.sparkSession))
    job.check_intervals(frame.schema)


def _start(
    frame: DataFrame,
    plan: InitiationPlan,
    id_columns: Sequence[str],
    flow_prefix: str,
    staging: str | None,
    source: str,
) -> RunCounts:
    engine = plan.load()
    # Each start has a folder of its own, because a driver that was thought dead may still read the last one.
    folder = f"stagepost-{re.sub(r'[^0-9A-Za-z-]', '-', plan.run_id)[:100]}-{engine.ids.mint()}"
    with staged(frame, staging, folder) as place:
        return job.initiate(
            frame.sparkSession, plan, [place], id_columns=id_columns, flow_prefix=flow_prefix, source=source
        )
