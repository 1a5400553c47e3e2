"""How boto3 reaches a bucket, for another client of the same process: Spark's S3A. Runs anywhere; needs boto3."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage.s3 import S3Store, clients, explained, source
from airflow_checkpoint_provider.storage.s3_settings import S3Settings

AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True)
class Access:
    """Where the service is, and the credentials as they are now. Its ``repr`` shows neither keys nor tokens.

    ``found_by`` is botocore's word for the place where the credentials were; ``renewed`` ones end, and boto3 gets others.
    Those of a role are got with them from ``sts_endpoint``.
    """

    endpoint: str
    region: str
    path_style: bool
    found_by: str
    renewed: bool
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False)
    role_arn: str | None = None
    sts_endpoint: str | None = None
    sts_region: str | None = None


def access(store: S3Store) -> Access:
    """Raises ``StoreMisconfigured`` where there are no credentials, and what the client says of its settings."""
    settings = store.settings
    with explained("read", store.uri.removeprefix("s3://"), ""):
        session = source(settings)
        found = session.get_credentials()
        if found is None:
            raise _none_found(store)
        now: Any = found.get_frozen_credentials()
        client: Any = clients(settings).patient
        sts: Any = session.client("sts") if settings.role_arn else None
    return Access(
        endpoint=client.meta.endpoint_url, region=client.meta.region_name, path_style=_path_style(settings, client.meta.endpoint_url),
        found_by=found.method, renewed=_renewed(found), access_key_id=now.access_key, secret_access_key=now.secret_key,
        session_token=now.token or None, role_arn=settings.role_arn, sts_endpoint=sts and sts.meta.endpoint_url,
        sts_region=sts and sts.meta.region_name,
    )  # fmt: skip


def _path_style(settings: S3Settings, endpoint: str) -> bool:
    """As botocore decides: names in the host only with Amazon, unless it is said otherwise."""
    if settings.addressing_style in ("path", "virtual"):
        return settings.addressing_style == "path"
    return bool(settings.endpoint_url) or not (urlsplit(endpoint).hostname or "").endswith(AMAZON)


def _renewed(credentials: Any) -> bool:
    return hasattr(credentials, "refresh_needed")


def _none_found(store: S3Store) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"there are no credentials for {store.uri} here: none in the environment (AWS_ACCESS_KEY_ID), none in the shared files"
        " (~/.aws, AWS_PROFILE), no web identity, no role of a container or an instance. Give this process one of them; keys of"
        " an Airflow connection are handed to drivers in client mode only"
    )
