"""How a task hands its S3 settings over to its driver: keys in the environment, the rest in Spark confs. Runs anywhere.

Confs stand in process arguments, logs and pages, so nothing secret is among them. The environment of a process is for its
own user to read; the driver takes the keys out of it before it starts anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.storage.base import Store
from airflow_checkpoint_provider.storage.s3 import S3Store
from airflow_checkpoint_provider.storage.s3_settings import S3Settings

KEYS = {
    "access_key_id": "CHECKPOINT_ACCESS_KEY_ID",
    "secret_access_key": "CHECKPOINT_SECRET_ACCESS_KEY",
    "session_token": "CHECKPOINT_SESSION_TOKEN",
}
"""Field of ``S3Settings`` -> variable."""

CONFS = {
    "endpoint_url": "endpoint",
    "region_name": "region",
    "addressing_style": "style",
    "verify": "verify",
    "role_arn": "role",
    "profile_name": "profile",
}
"""Field of ``S3Settings`` -> name in ``LaunchSettings.s3``."""


def refuse_for_jobs(store: Store) -> None:
    """What readers of the journal may do, but no job, since Spark moves its rows."""
    if isinstance(store, S3Store) and store.settings.verify is False:
        raise NotSupportedYet(
            f"{store.uri} with verify=false: Spark's S3A checks certificates, always. Give `verify` the path of a file with"
            " the certificates to trust, and the JVMs of the job a trust store (-Djavax.net.ssl.trustStore=...)"
        )


def confs(store: Store) -> dict[str, str]:
    """Return what is not secret: ``LaunchSettings.s3``. Empty for a store that is not in S3."""
    return {name: value for field, name in CONFS.items() if isinstance(value := _of(store, field), str)}


def keys(store: Store) -> dict[str, str]:
    """Return the environment variables with the keys; empty without keys."""
    return {name: value for field, name in KEYS.items() if (value := _of(store, field))}


def received(given: Mapping[str, str], secrets: Mapping[str, str]) -> S3Settings:
    """Return the settings again, from ``LaunchSettings.s3`` and the environment variables."""
    fields = {field: given[name] for field, name in CONFS.items() if name in given}
    return S3Settings(**fields, **{field: secrets[name] for field, name in KEYS.items() if name in secrets})


def _of(store: Store, field: str) -> str | None:
    value: str | None = getattr(store.settings, field) if isinstance(store, S3Store) else None
    return value
