"""Bulk work on Spark: start millions of flows, run the same stages on executors, and prove that no message is lost.

``transforms`` are pure ``DataFrame -> DataFrame`` functions, tested by value; ``jobs`` are the edges, which read, write
and collect. This package needs the extra ``stagepost[spark]``.
"""
