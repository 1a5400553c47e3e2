"""A stand-in for Airflow's Kubernetes provider, which the tests do not install. Runs where Airflow is."""

from __future__ import annotations

import sys
import types

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_checkpoint_provider.hooks.spark_submit import KUBERNETES


def with_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hook of the Spark provider find the provider and its client, which it does not call before a driver is in a pod."""
    monkeypatch.setitem(sys.modules, KUBERNETES, types.ModuleType("kubernetes"))
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
