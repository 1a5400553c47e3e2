"""A model of late flights: fitted once on the flights until November, used for those of December. Runs in the Spark driver.

``spark-submit predict_delays.py --source DATA --out PREDICTIONS``, or with plain ``python``.
"""

from __future__ import annotations

import argparse
from functools import partial

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

LATE = 15  # minutes
CODES = ("carrier", "origin")


def main(job: CheckpointedJob, source: str, out: str) -> None:
    flights = job.stage("flights", features(job.spark.read.parquet(f"{source}/flights.parquet")))
    model = job.files("model", partial(fit, flights.where("month < 12")))
    december = PipelineModel.load(model).transform(flights.where("month = 12"))
    predicted = job.stage("predicted", december.select("carrier", "flight", "time_hour", "late", probability()))
    job.sink("predictions", FileSink(out, mode="overwrite")).write(predicted)


def features(flights: DataFrame) -> DataFrame:
    """Return the flights that arrived, with what is known of them before."""
    arrived = flights.where("arr_delay IS NOT NULL")
    late = (F.col("arr_delay") > LATE).cast("int").alias("late")
    return arrived.select("carrier", "origin", "flight", "time_hour", "month", "hour", "distance", late)


def fit(flights: DataFrame, path: str) -> None:
    """Fit a model, and write its files below ``path``."""
    indexers = [StringIndexer(inputCol=name, outputCol=f"{name}_index", handleInvalid="keep") for name in CODES]
    columns = ["hour", "distance", *(f"{name}_index" for name in CODES)]
    assembler = VectorAssembler(inputCols=columns, outputCol="features")
    regression = LogisticRegression(labelCol="late", maxIter=10)
    Pipeline(stages=[*indexers, assembler, regression]).fit(flights).write().save(path)


def probability() -> Column:
    """Return the column of the probability that a flight is late."""
    return F.round(vector_to_array(F.col("probability"))[1], 4).alias("probability")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="folder with flights.parquet")
    parser.add_argument("--out", required=True, help="folder for the predictions; its content is replaced")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        main(job, options.source, options.out)
