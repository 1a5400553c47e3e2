"""Settings of S3 from a connection. Runs in Airflow (each process, command line).

The names are those of Airflow's ``aws`` connection, so an ``aws`` connection with a ``root`` works too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Connection

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import S3Settings

PLAIN = ("endpoint_url", "region_name", "addressing_style", "role_arn", "profile_name")
SECRET = {  # extra -> field; login and password win
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
FIELDS = {"login", "password", *PLAIN, *SECRET, "verify", "service_config"}
"""Fields of a connection to S3 besides its root."""


def is_s3(root: str) -> bool:
    """Return whether a root is a URI of S3."""
    return root.strip().lower().startswith(("s3:", "s3a:"))


def s3_settings(connection: Connection, extra: Mapping[str, Any]) -> S3Settings:
    """Return the settings of a connection. Raise ``StoreMisconfigured`` for invalid values."""
    fields = {name: _text(extra, name) for name in PLAIN}
    fields["endpoint_url"] = _service_endpoint(extra) or fields["endpoint_url"]
    fields |= {field: _text(extra, name) for name, field in SECRET.items()}
    if connection.login or connection.password:
        fields |= {"access_key_id": connection.login or None, "secret_access_key": connection.password or None}
    return S3Settings(verify=_verify(extra.get("verify")), **{name: value for name, value in fields.items() if value})


def _text(extra: Mapping[str, Any], name: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        raise StoreMisconfigured(f"{name} is not text. Write it in quotes")
    return value.strip() if value and name not in SECRET else value


def _service_endpoint(extra: Mapping[str, Any]) -> str | None:
    """Return the endpoint of ``{"service_config": {"s3": {"endpoint_url": ...}}}``, which takes precedence as in an ``aws``
    connection."""
    config = extra.get("service_config") or {}
    service = config.get("s3", {}) if isinstance(config, dict) else None
    if not isinstance(service, dict) or {*config} - {"s3"} or {*service} - {"endpoint_url"}:
        raise StoreMisconfigured(
            'of service_config, only {"s3": {"endpoint_url": "..."}} is supported. Remove the rest'
        )
    return _text(service, "endpoint_url")


def _verify(value: Any) -> bool | str:
    """Return ``verify``: a boolean, also as text from a form or a URI, or the path of a file with certificates."""
    if value is None or isinstance(value, bool):
        return value is not False
    switch = {"": True, "true": True, "false": False}.get(str(value).strip().lower())
    if switch is not None:
        return switch
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise StoreMisconfigured("verify is neither true, false, nor the absolute path of a file with certificates")
    return value
