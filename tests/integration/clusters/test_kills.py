"""A driver is killed while its executors are elsewhere; the next one goes on with the same rows. Runs on Linux."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.integration.runtime.rounds import Rounds
from tests.integration.runtime.totals import killed_job_continues
from tests.jobs.matrix import FEW
from tests.support.clusters import Cluster, local_cluster, standalone, yarn, yarn_cluster
from tests.support.s3server import S3Server

pytestmark = pytest.mark.slow  # test_tasks.py runs on a local cluster, and test_example_dag.py kills a driver
EVERYWHERE = [
    pytest.param(local_cluster, id="local-cluster"),
    pytest.param(standalone, id="standalone"),
    pytest.param(yarn, id="YARN"),
    pytest.param(yarn_cluster, id="YARN-cluster-mode"),
]


@pytest.fixture(params=["disk", "S3"])
def store(request: pytest.FixtureRequest) -> S3Server | None:
    s3: S3Server | None = request.getfixturevalue("s3") if request.param == "S3" else None
    return s3


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cluster", EVERYWHERE, indirect=True)
def test_killed_job_continues(cluster: Cluster, tmp_path: Path, store: S3Server | None) -> None:
    killed_job_continues(cluster.home(tmp_path / "home", "totals.py", store))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cluster", EVERYWHERE, indirect=True)
def test_queries_stay_exact_through_kills_and_sleeps(cluster: Cluster, tmp_path: Path, store: S3Server | None) -> None:
    matrix = cluster.home(tmp_path / "matrix", "matrix.py", store)
    matrix.env["PYSPARK_PYTHON"] = sys.executable
    with Rounds(matrix, seed=2, queries=FEW) as rounds:
        rounds.hurt(signal.SIGKILL, blind=False, saved=True)
        rounds.hurt(signal.SIGSTOP, blind=True, saved=False)
        rounds.finish()
        rounds.check_forks()
