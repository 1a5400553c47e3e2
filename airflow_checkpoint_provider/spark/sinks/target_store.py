"""The folder of a file sink as a store: which service, which keys. Runs in the Spark driver.

Rows go there through Hadoop, the log through a store of this package. For a bucket both must reach the same service as the same user, so
endpoint and keys are those of S3A for this bucket. They are never those of the checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.spark.py4j_log import quiet_py4j
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import spelled
from airflow_checkpoint_provider.storage import LocalStore, S3Store, Store
from airflow_checkpoint_provider.storage.s3_credentials import S3Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
BY_CHAIN = (  # the places in which boto3 looks, too
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultCredentialsProvider",
    "ProfileCredentialsProvider",
)


def uri_of(spark: SparkSession, path: str) -> str:
    """Return the target in the spelling of stores: ``file:///data/out``, ``s3://bucket/out``. Raises ``NotSupportedYet``."""
    uri = spelled(spark, path)
    scheme, _, rest = uri.partition(":")
    if scheme in ("s3", "s3a", "s3n"):
        return f"s3:{rest.rstrip('/')}"
    if scheme != "file":
        raise NotSupportedYet(
            f"a sink of files or of a Delta table writes to a folder that all hosts share, or to s3a://bucket/prefix. {path} is in {scheme},"
            " which cannot put an object only if it is absent. Write an IcebergSink or a JdbcSink"
        )
    return f"file:///{rest.strip('/')}"


def open_target(spark: SparkSession, uri: str) -> Store:
    """Return the store at ``uri``, a target in the spelling of ``uri_of``. Nothing is read or written yet."""
    if uri.startswith("file://"):
        return LocalStore(uri.removeprefix("file://"), private=False)
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not prefix:
        raise InvalidConfig(f"{uri} is a whole bucket. Write to a folder of it: {uri}/report")
    return S3Store(bucket, prefix, _settings(spark, bucket))


def _settings(spark: SparkSession, bucket: str) -> S3Settings:
    """Return the settings by which S3A reaches the bucket. Raises ``NotSupportedYet`` for credentials that boto3 cannot get."""
    session: Any = spark._jsparkSession
    conf = session.sessionState().newHadoopConf()

    def option(name: str) -> str | None:
        own, general = f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"
        value: str | None = conf.get(own) or conf.get(general)
        return value

    def secret(name: str) -> str | None:
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            with quiet_py4j():
                if (letters := conf.getPassword(key)) is not None:
                    return "".join(letters)
        return None

    endpoint = option("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if option('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    settings = S3Settings(
        endpoint_url=endpoint,
        region_name=option("endpoint.region"),
        addressing_style="path" if option("path.style.access") == "true" else "auto",
    )
    _check_provider(bucket, option("aws.credentials.provider"))
    if (key := secret("access.key")) is None:
        return settings
    return replace(
        settings, access_key_id=key, secret_access_key=secret("secret.key"), session_token=secret("session.token")
    )


def _check_provider(bucket: str, option: str | None) -> None:
    """Raise ``NotSupportedYet`` if S3A gets its credentials where boto3 does not look."""
    names = [name.strip().rpartition(".")[2] for name in (option or "").split(",")]
    if unknown := [name for name in names if name and name not in (*BY_KEYS, *BY_CHAIN)]:
        raise NotSupportedYet(
            f"S3A reaches the bucket {bucket} with {unknown[0]}, which boto3 does not know, so a FileSink cannot publish there. Set"
            f" fs.s3a.bucket.{bucket}.aws.credentials.provider to keys, the environment, a web identity or a role of the machine"
        )
