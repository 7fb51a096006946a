"""Messages in bulk, on Spark: getting millions in, processing them through the same stages, proving that none is lost.

``transforms`` are pure ``DataFrame -> DataFrame`` functions, tested by value; ``jobs`` are the edges, which read, write
and collect. This package needs the extra ``stagepost[spark]``.
"""
