"""The Spark data source ``stagepost``. Spark finds it by this package's name: ``spark.read.format("stagepost")``.

Spark imports every package named ``pyspark_*`` when it looks for a format, so this module only imports the source.
"""

from pyspark_stagepost.source import StagepostSource as DefaultSource

__all__ = ["DefaultSource"]
