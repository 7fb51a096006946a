"""Ids that Spark's SQL makes are the ids that Python makes."""

from __future__ import annotations

import uuid
from random import Random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stagepost.flow import ids
from stagepost.pipeline.transforms.identity import flow_id, message_id, uuid5

# Of all planes, with what has a meaning somewhere: separators, escapes, quotes, and letters of several bytes.
LETTERS = ",%2C5 abcABC019:;|\\\"'`$.{}<>\t\u00e9\u0308\u00df\u4e16\u754c\u0416\u05d0\U0001f9fe\U00010348\u200d"
PREFIXES = ("order", "", "a,b%", "d\u016fm")


def random_texts(number: int, seed: int) -> list[str]:
    random = Random(seed)
    return ["".join(random.choices(LETTERS, k=random.randrange(0, 12))) for _ in range(number)]


def flow_in_python(prefix: str, *values: str) -> str:
    return f"{prefix}:{','.join(value.replace('%', '%25').replace(',', '%2C') for value in values)}"


def test_thousands_of_keys_get_the_same_ids_in_sql_and_in_python(spark: SparkSession) -> None:
    rows = list(zip(random_texts(3000, 1), random_texts(3000, 2), strict=True))
    for number, prefix in enumerate(PREFIXES):
        flows = [(flow_id(prefix, [one]), flow_id(prefix, [one, two])) for one, two in rows if one and two]
        assert flows == [
            (flow_in_python(prefix, one), flow_in_python(prefix, one, two)) for one, two in rows if one and two
        ]
        narrow, wide = message_id(F.col("one"), "shop.order"), message_id(F.col("two"), "d\u016fm.o", number)
        found = spark.createDataFrame(flows, "one string, two string").select("one", "two", narrow, wide).collect()
        assert len(found) > 2000
        for row in found:
            assert row[2] == ids.from_key(row.one, "shop.order", 0)
            assert row[3] == ids.from_key(row.two, "d\u016fm.o", number)


def test_keys_that_differ_have_ids_that_differ() -> None:
    rows = [("a,b", "c"), ("a", "b,c"), ("a%2Cb", "c"), ("a", "b%2Cc"), (",", "a,b,c"), ("a,b,c", ","), (" ", ",")]
    assert len({flow_id("p", row) for row in rows}) == len(rows)


def test_a_row_without_one_of_its_keys_has_no_id(spark: SparkSession) -> None:
    missing: list[list[str | None]] = [["a", None], [None, "b"], [None, None], ["a", ""]]
    assert [flow_id("p", row) for row in missing] == [None] * 4
    frame = spark.createDataFrame([(None,)], "flow string")
    assert frame.select(message_id(F.col("flow"), "t")).collect()[0][0] is None


def test_uuid5_is_that_of_python_for_any_namespace(spark: SparkSession) -> None:
    texts = random_texts(500, 3)
    frame = spark.createDataFrame([(text,) for text in texts], "name string")
    for namespace in (uuid.NAMESPACE_DNS, uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)):
        found = frame.select("name", uuid5(namespace, F.col("name")).alias("id")).collect()
        assert [row.id for row in found] == [str(uuid.uuid5(namespace, row.name)) for row in found]
