"""A model that is fitted once, and an index that Python writes: the predictions need both. Runs in the Spark driver.

``model.py OUT [ROOT]`` prints a line ``RESULT {...}`` with its rows and with how often it has fitted the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression, LinearRegressionModel
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob


def main(job: CheckpointedJob, out: str) -> None:
    assembler, fits = VectorAssembler(inputCols=["x"], outputCol="features"), job.value("fits", 0)
    points = job.stage("points", job.spark.range(200).selectExpr("id", "id % 7 AS x", "3.0 * (id % 7) + 1 AS label"))

    def fit(path: str) -> None:
        fits.set(fits.get() + 1)
        LinearRegression().fit(assembler.transform(points)).write().save(path)

    def index(folder: str) -> None:
        Path(folder, "names").mkdir()
        distinct = points.select("x").distinct().orderBy("x").collect()
        Path(folder, "names", "all.json").write_text(json.dumps([f"name {row.x}" for row in distinct]))

    model = LinearRegressionModel.load(job.files("model", fit))
    names = json.loads(Path(job.files("index", index, local=True), "names", "all.json").read_text())
    scored = job.stage("scored", model.transform(assembler.transform(points)).groupBy("x").agg(F.max("prediction")))
    scored.write.mode("overwrite").parquet(out)
    rows = [[names[x], round(prediction, 6)] for x, prediction in sorted(map(tuple, scored.collect()))]
    print("RESULT", json.dumps({"rows": rows, "fits": fits.get(), "attempt": job.attempt}), flush=True)


if __name__ == "__main__":
    out, *root = sys.argv[1:]
    with CheckpointedJob(root=root[0] if root else None) as job:
        main(job, out)
