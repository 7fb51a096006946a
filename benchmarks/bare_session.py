"""Open a plain session of Spark on this machine, run one job, and stop it."""

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[*]").getOrCreate()
    spark.range(1).count()
    spark.stop()
