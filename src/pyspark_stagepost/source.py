"""Read a store's tables as DataFrames, over Arrow, and start a flow for each row that is written.

    spark.read.format("stagepost").option("url", "sqlite:///payments.db").option("table", "journal").load()
    orders.write.format("stagepost").mode("append").options(
        app="myapp:app", target="payments.pay", idColumns="order_id").save()

Options of the source:

``url``            the store; for ``outbox`` the database of the app, for the other tables that of the queue
``table``          ``journal``, ``queue`` (messages that wait or run), ``dead_letters``, ``places`` (the ids of
                   both), ``outbox`` or ``quarantine`` (rows of bulk runs that started no flow)
``columns``        the columns to read, such as ``"stage, at"``. The others do not leave the database.
                   ``.schema("stage string, at timestamp")`` does the same. ``select`` alone does not
``from``           ``journal``: only rows from this position on
``until``          ``journal``: only rows before it. Two reads with the same ``until`` see the same rows. Without it, a
                   read sees all rows that have committed when it begins
``lines``          ``journal``: only rows with ids from the first up to, but without, the second: ``0:1000``
``numPartitions``  ``journal``: the number of tasks, at most. By default it follows the number of rows and the slots
``slots``          how many tasks run at a time; by default the number of the driver's processors
``pushFilters``    ``true`` lets the store leave out rows that a filter does not keep. Spark takes such a reader only
                   with its setting ``spark.sql.python.filterPushdown.enabled``

``reader``         ``readStream``: the name of the stream, under which the store keeps its position. It is required
``maxRowsPerBatch``  ``readStream``: about how many rows a batch has; by default all that there are

One task reads each table except for the journal, in one snapshot, because rows move between these tables.

Positions are the text that ``Journal.position`` returns: the store's epoch and a number. The number is the id of a row
in SQLite, and of a transaction in PostgreSQL. A restore or a promotion begins a new epoch, and positions from before it
are refused. A number alone belongs to the current epoch.

Options of the sink, of ``write`` and ``writeStream`` alike:

``app``            ``MODULE:APP``, which the driver and the executors can import. The app knows its databases
``target``         the endpoint that each row is sent to; columns fill the fields of its message by name
``idColumns``      the columns whose values identify a row, such as ``"order_id, line"``: texts, whole or decimal
                   numbers, or dates
``flowPrefix``     flow ids are ``PREFIX:VALUE``; by default the target's name
``replyTo``        the endpoint that gets the replies
``repeated``       ``accept`` lets a batch come again with other rows, and starts those whose ids are new. By default
                   such a batch fails
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_stagepost.batch import PushingReader, StagepostReader
from pyspark_stagepost.options import Options, check_batch, check_stream, plain_errors
from pyspark_stagepost.stream import JournalStream, RefusedStream
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import StagepostError


class StagepostSource(DataSource):
    """The format ``stagepost``. Its methods raise ``DeclarationError`` for options that cannot be used."""

    @classmethod
    def name(cls) -> str:
        return "stagepost"

    def schema(self) -> StructType:
        with plain_errors():
            return Options.read(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with plain_errors():
            options = Options.read(self.options)
            check_batch(options)
            return (PushingReader if options.pushes_filters else StagepostReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        # A read, which imports this module in each of its processes, does without all that an app needs.
        from pyspark_stagepost.sink import BatchSink  # noqa: PLC0415
        from pyspark_stagepost.sink_options import sink_plan  # noqa: PLC0415

        with plain_errors():
            plan = sink_plan(self.options, schema, overwrite=overwrite)
            return BatchSink(plan, plan.load().ids.mint())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_stagepost.sink import StreamSink  # noqa: PLC0415 - see above
        from pyspark_stagepost.sink_options import sink_plan  # noqa: PLC0415

        with plain_errors():
            return StreamSink(sink_plan(self.options, schema, overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            options = Options.read(self.options)
            check_stream(options)
            return JournalStream(options, schema, SystemClock())
        except StagepostError as error:
            return RefusedStream(error)
