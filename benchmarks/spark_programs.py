"""Programs for Spark, as users write them: read the journal to ``noop``, and write rows to the sink.

    python -m benchmarks.spark_programs source sqlite:///payments.db
    python -m benchmarks.spark_programs sink MODULE:APP ROWS

Each prints the seconds of its read or write. The session has started and has run a first job before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from benchmarks.initiate_rows import TEXT
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.spark_programs")
    parser.add_argument("program", choices=("source", "sink"))
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--conf", metavar="NAME=VALUE", action="append", default=[])
    options = parser.parse_args(words)
    with spark_session("benchmark", SparkOptions.read(None, options.conf, (), ())) as spark:
        spark.range(1).count()
        found = read(spark, *options.arguments) if options.program == "source" else write(spark, *options.arguments)
        print(json.dumps(found))


def read(spark: SparkSession, url: str) -> dict[str, float]:
    counted = Observation()
    lines = spark.read.format("stagepost").option("url", url).load().observe(counted, F.count("*").alias("rows"))
    begin = time.perf_counter()
    lines.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - begin, "rows": counted.get["rows"]}


def write(spark: SparkSession, app: str, rows: str) -> dict[str, float]:
    columns = (F.col("id").alias("n"), F.lit(TEXT).alias("text"))
    options = {"app": app, "target": "bench.first", "idColumns": "n", "flowPrefix": "item"}
    begin = time.perf_counter()
    spark.range(int(rows)).select(*columns).write.format("stagepost").mode("append").options(**options).save()
    return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    main(sys.argv[1:])
