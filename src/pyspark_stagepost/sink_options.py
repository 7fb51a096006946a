"""The options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql.types import StructType

from pyspark_stagepost.options import named
from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.sink import SinkPlan, check_plan
from stagepost.pipeline.task_plan import import_shipped

REQUIRED = {
    "app": "myapp:app",
    "target": "payments.pay",
    "idColumns": "order_id",
}
OPTIONS = (*REQUIRED, "flowPrefix", "replyTo", "messageType", "repeated")
REPEATED = ("fail", "accept")
# Spark passes its own options on.
OF_SPARK = ("checkpointlocation", "queryname")


def sink_plan(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Check the options and the columns. Raises ``DeclarationError`` and ``IllegalCall``."""
    if overwrite:
        raise DeclarationError(
            'the sink stagepost only adds messages: write with mode("append"), and a stream with outputMode("append")'
        )
    own = {name: value for name, value in given.items() if name.lower() not in OF_SPARK}
    options = named(own, OPTIONS, "sink")
    for name, example in REQUIRED.items():
        if not options.get(name):
            raise DeclarationError(f'the sink stagepost needs .option("{name}", "{example}")')
    repeated = options.get("repeated", "fail")
    if repeated not in REPEATED:
        raise DeclarationError(f"option repeated of the sink stagepost must be fail or accept, not {repeated!r}")
    columns = tuple(each.strip() for each in options["idColumns"].split(","))
    if not all(columns) or len(set(columns)) < len(columns):
        raise DeclarationError(
            f"option idColumns of the sink stagepost must name columns, each once, such as 'order_id, line', not "
            f"{options['idColumns']!r}"
        )
    files = SparkFiles.getRootDirectory()
    import_shipped(files)
    plan = SinkPlan(
        options["app"],
        str(Path.cwd()),
        engine_of(load_app(options["app"])).databases.place,
        options["target"],
        options.get("replyTo"),
        columns,
        options.get("flowPrefix") or options["target"],
        repeated == "accept",
        files,
        options.get("messageType"),
    )
    check_plan(plan, schema)
    return plan
