"""One Spark session for all tests that can share it. Its confs make small work quick; none of them changes results."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark import RDD
from pyspark.sql import SparkSession

from tests.support.drivers import WITH_S3A, fast_confs
from tests.support.jars import NoJars
from tests.support.postgres import NoPostgres, Postgres, jars

logging.getLogger("py4j").setLevel(logging.WARNING)  # it speaks of its sockets after the tests' streams are closed

EARLY = "-XX:CompileThresholdScaling=0.1"
"""A JVM that lives for minutes earns what it compiles; a driver of seconds does not."""
INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark compiles an expression for millions of rows. For a few rows, to interpret it takes a sixth less of the whole work."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("tests")
    folder = tmp_path_factory.mktemp("spark")
    for name, value in {**fast_confs(folder), **INTERPRETED}.items():
        builder = builder.config(name, value)
    no_file_here = f"-Dderby.stream.error.file={folder}/derby.log"  # Derby, read by tests over JDBC, has its log in the working directory
    builder = builder.config("spark.driver.extraJavaOptions", f"{EARLY} {no_file_here}")
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # for tests that write to S3; their drivers say themselves what they have
        for name, value in WITH_S3A.items():
            patch.setenv(name, os.pathsep.join([value, *_driver_of_postgresql()]))
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def rows_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ``RDD.toDF`` back, which a test's ``newSession()`` takes from the session of all tests."""
    if hasattr(RDD, "toDF"):  # there is a session
        monkeypatch.setattr(RDD, "toDF", RDD.toDF)


def _driver_of_postgresql() -> list[str]:
    try:
        return [f"{jars()}/*"]
    except NoJars:  # tests that need it are skipped
        return []


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One server for all tests; each takes a table of its own."""
    try:
        jars()
        server = Postgres(tmp_path_factory.mktemp("postgres"))
    except (NoJars, NoPostgres) as error:
        pytest.skip(str(error))
    with server:
        yield server
