"""Ids that Spark's SQL makes are the ids that Python makes."""

from __future__ import annotations

import uuid
from random import Random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

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
    frame = spark.createDataFrame(rows, "a string, b string")
    columns = []
    for number, prefix in enumerate(PREFIXES):
        one, two = flow_id(prefix, ["a"]), flow_id(prefix, ["a", "b"])
        columns += [one.alias(f"one{number}"), message_id(one, "shop.order").alias(f"one_id{number}")]
        columns += [two.alias(f"two{number}"), message_id(two, "d\u016fm.o", 7).alias(f"two_id{number}")]
    found = frame.select("a", "b", *columns).collect()
    assert len(found) == 3000
    for row in found:
        for number, prefix in enumerate(PREFIXES):
            flow, wide = flow_in_python(prefix, row.a), flow_in_python(prefix, row.a, row.b)
            assert (row[f"one{number}"], row[f"two{number}"]) == (flow, wide)
            assert row[f"one_id{number}"] == ids.from_key(flow, "shop.order", 0)
            assert row[f"two_id{number}"] == ids.from_key(wide, "d\u016fm.o", 7)


def test_keys_that_differ_have_ids_that_differ(spark: SparkSession) -> None:
    rows = [
        ("a,b", "c"),
        ("a", "b,c"),
        ("a%2Cb", "c"),
        ("a", "b%2Cc"),
        ("", "a,b,c"),
        ("a,b,c", ""),
        ("", ""),
        (" ", ""),
    ]
    frame = spark.createDataFrame(rows, "a string, b string").select(flow_id("p", ["a", "b"]).alias("flow"))
    assert len({row.flow for row in frame.collect()}) == len(rows)


def test_a_row_without_one_of_its_keys_has_no_id(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", None), (None, "b"), (None, None)], "a string, b string")
    flow = flow_id("p", ["a", "b"])
    found = frame.select(flow.alias("flow"), message_id(flow, "t").alias("id")).collect()
    assert [tuple(row) for row in found] == [(None, None)] * 3


def test_numbers_and_dates_are_named_as_they_are_written(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 7L AS n, 1.10BD AS d, DATE'2026-03-01' AS day, true AS yes")
    found = frame.select(flow_id("p", ["n", "d", "day", "yes"]).alias("flow")).collect()
    assert found[0].flow == "p:7,1.10,2026-03-01,true"


def test_a_column_may_have_a_name_that_means_something_to_sql(spark: SparkSession) -> None:
    names = ["select", "two words", "d\u016fm", "UPPER"]
    schema = StructType()
    for name in names:
        schema.add(name, StringType())
    frame = spark.createDataFrame([("1", "2", "3", "4")], schema).select(flow_id("p", names).alias("flow"))
    assert frame.collect()[0].flow == "p:1,2,3,4"


def test_uuid5_is_that_of_python_for_any_namespace(spark: SparkSession) -> None:
    texts = random_texts(500, 3)
    frame = spark.createDataFrame([(text,) for text in texts], "name string")
    for namespace in (uuid.NAMESPACE_DNS, uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)):
        found = frame.select("name", uuid5(namespace, F.col("name")).alias("id")).collect()
        assert [row.id for row in found] == [str(uuid.uuid5(namespace, row.name)) for row in found]
