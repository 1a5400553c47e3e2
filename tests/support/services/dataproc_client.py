"""Airflow's operators of Dataproc over HTTP in the place of gRPC. Runs where the provider is, in the process of a task.

Importing this replaces the client of the provider's hook: it is Google's own, with its transport for REST, without credentials, and asks the
server that ``DATAPROC_URL`` names. All else is the provider's.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.google.cloud.hooks.dataproc import DataprocHook
from airflow.providers.google.cloud.operators.dataproc import DataprocSubmitJobOperator
from google.auth.credentials import AnonymousCredentials
from google.cloud.dataproc_v1 import JobControllerClient
from google.cloud.dataproc_v1.services.job_controller.transports.rest import JobControllerRestTransport

from airflow_checkpoint_provider.operators.dataproc import CheckpointedDataprocSubmitJobOperator
from tests.support.services.dataproc import URL

__all__ = ["CheckpointedDataprocSubmitJobOperator", "DataprocSubmitJobOperator"]


def job_client(_: object, region: str | None = None) -> Any:
    """Return what ``DataprocHook.get_job_client`` returns. ``region`` chooses one of Google's hosts."""
    assert region
    where = urlsplit(os.environ[URL])
    transport = JobControllerRestTransport(
        host=where.netloc, url_scheme=where.scheme, credentials=AnonymousCredentials()
    )
    return JobControllerClient(transport=transport)


DataprocHook.get_job_client = job_client
