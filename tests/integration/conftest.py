"""One Spark session for all tests that can share it. Its confs make small work quick; none of them changes results."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.drivers import WITH_S3A, fast_confs


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in fast_confs(tmp_path_factory.mktemp("spark")).items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it speaks of its sockets after the tests' streams are closed
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # for tests that write to S3; their drivers say themselves what they have
        for name, value in WITH_S3A.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()
