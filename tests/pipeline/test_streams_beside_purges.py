"""A stream in Spark beside a purge: no line goes that the stream has not read, not even if its first batch dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Event

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stagepost.runtime.purge_service import purge_all
from tests.pipeline.archives import RULES, Shelf
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.more


class Copy:
    """A query that counts the lines of each flow. Its batches wait at a gate, and die if they are told so."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._lines = spark.readStream.format("stagepost").options(url=url, reader="copy", columns="id,flow_id").load()
        self._checkpoint = str(folder)
        self.entered = Event()
        self.gate = Event()
        self.is_dying = False
        self.found: Counter[str] = Counter()

    def start(self) -> StreamingQuery:
        writer = self._lines.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        return writer.trigger(availableNow=True).start()

    def _take(self, batch: DataFrame, number: int) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        found = Counter(row.flow_id for row in batch.collect())
        if self.is_dying:
            raise RuntimeError(f"batch {number} dies")
        self.found += found


def test_a_first_batch_that_dies_beside_a_purge_comes_again_with_all_its_lines(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.write("a", "b")
    shelf.age()
    copy = Copy(spark, shelf.url, tmp_path / "checkpoint")
    copy.is_dying = True
    query = copy.start()
    assert copy.entered.wait(PATIENCE_SECONDS)
    purge(shelf)
    copy.gate.set()
    with pytest.raises(StreamingQueryException, match="batch 0 dies"):
        query.awaitTermination()
    purge(shelf)
    assert shelf.stored() == {"a": 3, "b": 3}

    copy.is_dying = False
    copy.start().awaitTermination()
    assert copy.found == {"a": 3, "b": 3}
    # Spark tells the source that a batch has ended when the next one begins.
    shelf.write("c")
    shelf.age()
    copy.start().awaitTermination()
    assert copy.found == {"a": 3, "b": 3, "c": 3}
    purge(shelf)
    assert shelf.stored() == {"c": 3}


def purge(shelf: Shelf) -> None:
    list(purge_all(shelf.access, rules=RULES))
