"""Checkpointed tasks of each service: the driver dies, the worker is lost, the launch is refused. Runs on Linux."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.services.checkpointed import (
    SCRIPT,
    STEPS,
    TRIED,
    CheckpointedTask,
    Event,
    refused_launch,
    words,
)
from tests.integration.services.telling import archive
from tests.support.providers import Environment
from tests.support.services.databricks import Databricks
from tests.support.services.dataproc import CLUSTER, PROJECT, REGION, Dataproc
from tests.support.services.emr import ROLE, Emr
from tests.support.services.hosts import Host
from tests.support.services.kubernetes import Kubernetes
from tests.support.services.livy import Livy
from tests.support.sparks import python_with_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # test_mixin.py shows each
BEATS = {"CHECKPOINT_HEARTBEAT_SECONDS": "1"}
OURS = "airflow_checkpoint_provider.operators"


def tried(events: Sequence[Event]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("event", events, ids=lambda event: event.__name__)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "host", variables=BEATS) as host:
        yield host


@tried(TRIED["`SparkApplication`"])
def test_spark_application(event: Event, host: Host, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    spec = {
        "type": "Python", "mode": "cluster", "image": "none", "mainApplicationFile": SCRIPT, "arguments": words(tmp_path),
        "driver": {"cores": 1}, "executor": {"instances": 1},
    }  # fmt: skip
    body = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": {"name": "job"}, "spec": spec,
    }  # fmt: skip
    with Kubernetes(host) as service:
        asked = {"namespace": "default", "template_spec": body}
        variables = {"AIRFLOW_CONN_KUBERNETES_DEFAULT": service.connection}
        operator = f"{OURS}.spark_kubernetes:CheckpointedSparkKubernetesOperator"
        deletes = "DELETE .*/sparkapplications/job-[^/]*"
        event(CheckpointedTask(cncf_kubernetes, service, operator, asked, variables, tmp_path, deletes))


@tried(TRIED["a pod"])
def test_pod(event: Event, host: Host, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    command = (
        f'exec spark-submit --master "local[2]" --py-files "$CHECKPOINT_ARCHIVE" {SCRIPT} {" ".join(words(tmp_path))}'
    )
    asked = {"name": "driver", "namespace": "default", "image": "none", "cmds": ["sh", "-c"], "arguments": [command]}
    with Kubernetes(host) as service:
        variables = {"AIRFLOW_CONN_KUBERNETES_DEFAULT": service.connection}
        operator = f"{OURS}.kubernetes_pod:CheckpointedKubernetesPodOperator"
        deletes = "DELETE .*/pods/driver-[^/]*"
        event(CheckpointedTask(cncf_kubernetes, service, operator, asked, variables, tmp_path, deletes, refusal=403))


def test_refused_batch_of_livy(host: Host, tmp_path: Path) -> None:
    """tests/e2e/test_livy.py has the other events, on a real Airflow."""
    with Livy(host) as service:
        asked = {"file": SCRIPT, "args": words(tmp_path), "polling_interval": 1}
        variables = {"AIRFLOW_CONN_LIVY_DEFAULT": service.connection}
        here, operator = Environment(sys.executable), f"{OURS}.livy:CheckpointedLivyOperator"
        refused_launch(CheckpointedTask(here, service, operator, asked, variables, tmp_path))


def step(cluster: str, arguments: list[str]) -> dict[str, Any]:
    jar = {"Jar": "command-runner.jar", "Args": ["spark-submit", "--deploy-mode", "cluster", SCRIPT, *arguments]}
    steps = [{"Name": "job", "ActionOnFailure": "CONTINUE", "HadoopJarStep": jar}]
    return {"job_flow_id": cluster, "steps": steps, "waiter_delay": 1, "waiter_max_attempts": 600}


def aws(service: Emr) -> dict[str, str]:
    """Return Airflow's connection. boto3 would ask again by itself after a 500."""
    return {"AIRFLOW_CONN_AWS_DEFAULT": service.connection, "AWS_MAX_ATTEMPTS": "1"}


def task_of_emr_step(service: Emr, amazon: Environment, folder: Path) -> CheckpointedTask:
    asked = step(service.create_cluster(), words(folder))
    operator = f"{OURS}.emr:CheckpointedEmrAddStepsOperator"
    return CheckpointedTask(amazon, service, operator, asked, aws(service), folder)


@tried(TRIED["EMR steps"])
def test_emr_step(event: Event, host: Host, amazon: Environment, tmp_path: Path) -> None:
    with Emr(host) as service:
        event(task_of_emr_step(service, amazon, tmp_path))


@tried(STEPS[:2])
def test_emr_step_on_spark_4_0(event: Event, amazon: Environment, tmp_path: Path) -> None:
    with Host(tmp_path / "host", variables=BEATS, python=python_with_spark("4.0")) as host, Emr(host) as service:
        task = task_of_emr_step(service, amazon, tmp_path)
        event(task)
        assert {attempt.versions.spark[:4] for attempt in task.state.attempts} == {"4.0."}


@tried(TRIED["EMR Serverless"])
def test_emr_serverless(event: Event, host: Host, amazon: Environment, tmp_path: Path) -> None:
    with Emr(host) as service:
        driver = {"sparkSubmit": {"entryPoint": SCRIPT, "entryPointArguments": words(tmp_path)}}
        asked = {
            "application_id": service.create_application(), "execution_role_arn": ROLE, "job_driver": driver, "waiter_delay": 1,
            "waiter_max_attempts": 600,
        }  # fmt: skip
        operator = f"{OURS}.emr:CheckpointedEmrServerlessStartJobOperator"
        event(CheckpointedTask(amazon, service, operator, asked, aws(service), tmp_path, "DELETE .*/jobruns/[^/]*"))


@tried(TRIED["Databricks"])
def test_databricks(event: Event, host: Host, databricks: Environment, tmp_path: Path) -> None:
    """The package is installed on the new cluster."""
    asked = {
        "spark_python_task": {"python_file": SCRIPT, "parameters": words(tmp_path)}, "new_cluster": {"spark_version": "17"},
        "libraries": [{"egg": archive()}], "polling_period_seconds": 1, "databricks_retry_limit": 1,
    }  # fmt: skip
    with Databricks(host) as service:
        variables = {"AIRFLOW_CONN_DATABRICKS_DEFAULT": service.connection}
        operator = f"{OURS}.databricks:CheckpointedDatabricksSubmitRunOperator"
        event(CheckpointedTask(databricks, service, operator, asked, variables, tmp_path))


@tried(TRIED["Dataproc"])
def test_dataproc(event: Event, host: Host, google: Environment, tmp_path: Path) -> None:
    """Google's client speaks HTTP here, and gRPC to Google (``dataproc_client.py``)."""
    spark = {"main_python_file_uri": SCRIPT, "args": words(tmp_path)}
    asked = {
        "project_id": PROJECT, "region": REGION, "job": {"placement": {"cluster_name": CLUSTER}, "pyspark_job": spark},
    }  # fmt: skip
    with Dataproc(host) as service:
        operator = "tests.support.services.dataproc_client:CheckpointedDataprocSubmitJobOperator"
        event(CheckpointedTask(google, service, operator, asked, service.variables, tmp_path))
