"""The access to an S3 service: settings, credentials, and how a task hands them over to its driver. Runs anywhere; needs boto3.

A task hands its keys over in the environment, which only the user of a process can read, and the rest in Spark confs, which
stand in process arguments, logs and web pages. The driver removes the keys from its environment before it starts anything.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_checkpoint_provider.errors import NotInstalled, NotSupportedYet, StoreMisconfigured
from airflow_checkpoint_provider.storage.base import Store, StoreBase

if TYPE_CHECKING:
    from boto3.session import Session

_ENDPOINT = re.compile(r"https?://[^/@?#\s]+/?", re.IGNORECASE)
_KEY = re.compile(r"[!-~]+")
_STYLES = ("auto", "path", "virtual")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")

# -- settings ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class S3Settings:
    """Where the service is and how to get credentials. Its ``repr`` shows neither keys nor tokens.

    Without keys, role and profile, boto3 looks in the usual places: environment, shared files, container, instance. A role
    is assumed with the other credentials, and renewed before it expires. ``addressing_style`` is ``path`` by default if there
    is an endpoint, else ``auto``. ``verify`` says whether certificates are checked, or is the path of a file with the
    certificates to trust.
    """

    endpoint_url: str | None = None
    region_name: str | None = None
    addressing_style: str | None = None
    verify: bool | str = True
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    profile_name: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint_url is not None and not _ENDPOINT.fullmatch(self.endpoint_url):  # it may hold a password
            raise StoreMisconfigured("endpoint_url is invalid. Write http://host:port or https://host:port")
        if self.addressing_style not in (None, *_STYLES):
            raise StoreMisconfigured(
                f"addressing_style is {self.addressing_style!r}. Write one of {', '.join(_STYLES)}"
            )
        given = filter(None, (self.access_key_id, self.secret_access_key, self.session_token))
        if not all(_KEY.fullmatch(value) for value in given):  # boto3's error would show the value
            raise StoreMisconfigured(
                "the key id, secret or session token contains a space or a line break, or a letter outside of ASCII. Paste it again"
            )
        for name, value in vars(self).items():  # they become environment variables and Spark confs
            if isinstance(value, str) and not value.isprintable():
                raise StoreMisconfigured(f"{name} contains a character that cannot be printed. Type it again")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise StoreMisconfigured(
                "there is a key id without a secret, or a secret without a key id. Give both or none"
            )


def settings_of(store: Store | StoreBase) -> S3Settings | None:
    """Return the settings of a store in S3, None of any other store."""
    settings: S3Settings | None = getattr(store, "settings", None)
    return settings


# -- from the task to the driver -----------------------------------------------------------------------------------------

KEYS = {
    "access_key_id": "CHECKPOINT_ACCESS_KEY_ID",
    "secret_access_key": "CHECKPOINT_SECRET_ACCESS_KEY",
    "session_token": "CHECKPOINT_SESSION_TOKEN",
}
"""Field of ``S3Settings`` -> environment variable."""

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
    """Raise ``NotSupportedYet`` if Spark could not reach the store, though boto3 can."""
    settings = settings_of(store)
    if settings and settings.verify is False:
        raise NotSupportedYet(
            f"{store.uri} has verify=false, but Spark's S3A always checks certificates. Set `verify` to the path of a file with"
            " the certificates to trust, and give the JVMs of the job a trust store (-Djavax.net.ssl.trustStore=...)"
        )


def confs(store: Store) -> dict[str, str]:
    """Return the settings that are not secret: ``LaunchSettings.s3``. Empty for a store that is not in S3."""
    settings = settings_of(store)
    return {name: value for field, name in CONFS.items() if isinstance(value := getattr(settings, field, None), str)}


def keys(store: Store) -> dict[str, str]:
    """Return the environment variables with the keys; empty without keys."""
    settings = settings_of(store)
    return {name: value for field, name in KEYS.items() if (value := getattr(settings, field, None))}


def received(options: Mapping[str, str], secrets: Mapping[str, str]) -> S3Settings:
    """Return the settings again, from ``LaunchSettings.s3`` and the environment variables."""
    fields = {field: options[name] for field, name in CONFS.items() if name in options}
    return S3Settings(**fields, **{field: secrets[name] for field, name in KEYS.items() if name in secrets})


# -- credentials of boto3 ------------------------------------------------------------------------------------------------


LOGGERS = ("boto3", "botocore", "s3transfer", "urllib3")


def session_for(settings: S3Settings) -> Session:
    """Return a session with the credentials that are there; a role of ``settings`` is not assumed yet."""
    try:
        import boto3
    except ImportError as error:
        raise NotInstalled(
            f"checkpoints in S3 need boto3, which cannot be imported in this Python ({error}). Install it:"
            " pip install 'airflow-checkpoint-provider[s3]', on a Spark driver pip install boto3"
        ) from error
    _keep_out_of_logs()
    return boto3.session.Session(
        aws_access_key_id=settings.access_key_id or None,
        aws_secret_access_key=settings.secret_access_key or None,
        aws_session_token=settings.session_token or None,
        region_name=settings.region_name or ("us-east-1" if settings.endpoint_url else None),
        profile_name=settings.profile_name or None,
    )


def _keep_out_of_logs() -> None:
    """Drop the lines that boto3 logs at DEBUG, whatever levels a script sets: they hold key ids and session tokens."""
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] in LOGGERS:  # a filter of a logger does not see the records of those below it
            logging.getLogger(name).addFilter(_above_debug)


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def assume_role(source: Session, role_arn: str) -> Session:
    """Return a session of the role. It gets credentials with its first request, and new ones before they expire."""
    import boto3
    from botocore.credentials import (
        AssumeRoleCredentialFetcher,
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
    )
    from botocore.exceptions import NoCredentialsError
    from botocore.session import get_session

    credentials = source.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=source.client,
        source_credentials=credentials,
        role_arn=role_arn,
        extra_args={"RoleSessionName": "checkpoints"},
    )

    class Role(CredentialProvider):
        METHOD = "assume-role"

        def load(self) -> Any:
            return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=self.METHOD)

    core = get_session()
    core.register_component("credential_provider", CredentialResolver([Role()]))
    return boto3.session.Session(botocore_session=core, region_name=source.region_name)


# -- for Spark's S3A -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """Where the service is, and the credentials as they are now, for another client. Its ``repr`` shows neither keys nor tokens.

    ``found_by`` is botocore's word for the place where it found the credentials. If ``renewed``, they expire and boto3 gets
    new ones. Credentials of ``role_arn`` are got with them from ``sts_endpoint``.
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


def access(uri: str, settings: S3Settings, client: Any) -> Access:
    """Return how ``client``, boto3's for the store at ``uri``, reaches the service. Raises ``StoreMisconfigured`` without credentials."""
    session = session_for(settings)
    credentials = session.get_credentials()
    if credentials is None:
        raise _no_credentials(uri)
    now: Any = credentials.get_frozen_credentials()
    sts: Any = session.client("sts") if settings.role_arn else None
    return Access(
        endpoint=client.meta.endpoint_url,
        region=client.meta.region_name,
        path_style=_path_style(settings, client.meta.endpoint_url),
        found_by=credentials.method,
        renewed=hasattr(credentials, "refresh_needed"),
        access_key_id=now.access_key,
        secret_access_key=now.secret_key,
        session_token=now.token or None,
        role_arn=settings.role_arn,
        sts_endpoint=sts and sts.meta.endpoint_url,
        sts_region=sts and sts.meta.region_name,
    )


def _path_style(settings: S3Settings, endpoint: str) -> bool:
    """Decide as botocore does: the bucket is part of the host name only with Amazon, if the settings do not say."""
    if settings.addressing_style in ("path", "virtual"):
        return settings.addressing_style == "path"
    return bool(settings.endpoint_url) or not (urlsplit(endpoint).hostname or "").endswith(_AMAZON)


def _no_credentials(uri: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"there are no credentials for {uri}: not in the environment (AWS_ACCESS_KEY_ID), not in the shared files (~/.aws,"
        " AWS_PROFILE), and no web identity and no role of a container or an instance. Give this process one of them; the keys"
        " of an Airflow connection reach drivers in client mode only"
    )
