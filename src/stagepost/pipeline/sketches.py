"""Percentiles as sketches, which Spark computes with a library that greets on standard error."""

from __future__ import annotations

from pyspark.sql import SparkSession

# The class that writes a line about Java's version when it is loaded. The sketches need nothing that the line is about.
NOISY = "org.apache.datasketches.memory.internal.ResourceImpl"


def load_quietly(spark: SparkSession) -> None:
    """Load the library into the driver's Java process without its line. Executors write it to their own logs."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to Java
    assert jvm is not None
    system = jvm.java.lang.System
    out, err = system.out, system.err
    nowhere = jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream())
    system.setOut(nowhere)
    system.setErr(nowhere)
    try:
        jvm.java.lang.Class.forName(NOISY)
    finally:
        system.setOut(out)
        system.setErr(err)
