"""Rows in S3: check the jars that Spark needs, and configure S3A for the checkpoints' bucket. Runs in the Spark driver.

The journal goes through boto3, rows go through Hadoop's S3A, whose jars Spark does not bring. S3A is configured by confs of
this one bucket, so that the job's own buckets keep their own service and keys. Confs that the job sets for that bucket
(``fs.s3a.bucket.<bucket>.*``) win. The names of secret confs match Spark's redaction rule, so Spark hides their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.location.files import hadoop_uri
from airflow_checkpoint_provider.protocol.keys import JOBS
from airflow_checkpoint_provider.spark.java_classes import hadoop_path, java_class
from airflow_checkpoint_provider.spark.py4j_log import quiet_py4j
from airflow_checkpoint_provider.storage import S3Store, Store
from airflow_checkpoint_provider.storage.directories import opened
from airflow_checkpoint_provider.storage.s3_credentials import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SDK = {"3.4.1": "2.24.8", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""Hadoop's version -> the version of Amazon's SDK with which its hadoop-aws was built. An older SDK lacks fields that it uses.
Hadoop 3.4.1 was built with 2.24.6, whose s3-transfer-manager was never published."""
NEEDED = {
    "org.apache.hadoop.fs.s3a.S3AFileSystem": "org.apache.hadoop:hadoop-aws",
    "software.amazon.awssdk.services.s3.S3Client": "software.amazon.awssdk:s3",
    "software.amazon.awssdk.transfer.s3.S3TransferManager": "software.amazon.awssdk:s3-transfer-manager",
}
"""A class of each jar -> its Maven coordinates. The other jars are their dependencies."""

ACCELERATED = "org.apache.hadoop.fs.s3a.impl.streams.AnalyticsStream"
"""A class of hadoop-aws since 3.4.2, which needs ``ACCELERATOR``."""
ACCELERATOR = {
    "software.amazon.s3.analyticsaccelerator.request.ObjectClient": "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
}
FOR_ROLES = {"software.amazon.awssdk.services.sts.StsClient": "software.amazon.awssdk:sts"}

EXCLUDED = (  # the bundle is all of Amazon in 686 MB; Spark has its own, newer versions of the others
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
    "org.slf4j:*",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.apache.httpcomponents:*",
)
HADOOP_AWS = "META-INF/maven/org.apache.hadoop/hadoop-aws/pom.properties"

KEYS = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
SESSION = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ROLE = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
RENEWING = {  # boto3's name of a source of credentials -> the class that reads and renews the same ones in the JVM
    "iam-role": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
    "container-role": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
    "assume-role-with-web-identity": "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
}
PROVIDER, ACCESS_KEY = "aws.credentials.provider", "access.key"
_NOT_LINKED = ("NoClassDefFoundError", "ClassNotFoundException", "NoSuchMethodError", "NoSuchFieldError")


def spark_uri(store: Store, folder: str) -> str:
    """Return the URI of a directory in ``store`` as Spark needs it.

    Raises ``StoreMisconfigured`` if a link below a local root leads there. Spark would follow it out of the root.
    """
    if store.uri.startswith("file:"):
        with suppress(OSError), opened(store.uri.removeprefix("file://"), folder.split("/")):
            pass
    return hadoop_uri(f"{store.uri}/{folder}")


def prepare(spark: SparkSession, store: Store) -> None:
    """Configure S3A for ``store``, and check that boto3 and S3A reach it. Does nothing for other stores.

    Call it before rows are read or written. Raises ``NotInstalled`` and ``VersionMismatch``, which say what to add, and a
    ``StoreError`` if the bucket cannot be reached.
    """
    if not isinstance(store, S3Store):
        return
    access = store.access()
    # boto3 first: its errors say more, and S3A waits long for a store that does not answer
    next(iter(store.folders(JOBS)), None)
    _check_jars(spark, {**NEEDED, **FOR_ROLES} if access.role_arn or access.renewed else NEEDED)
    _configure(spark, store, access)
    _check_access(spark, store)


# -- jars --------------------------------------------------------------------------------------------------------------


def _check_jars(spark: SparkSession, needed: Mapping[str, str]) -> None:
    hadoop = _hadoop_conf(spark)
    version = _hadoop_version(spark)

    def has(name: str) -> bool:
        return hadoop.getResource(f"{name.replace('.', '/')}.class") is not None

    all_needed = {**needed, **(ACCELERATOR if has(ACCELERATED) else {})}
    missing = [jar for name, jar in all_needed.items() if not has(name)]
    if missing:
        raise errors.NotInstalled(
            f"Spark reaches S3 with jars that this driver lacks: {', '.join(missing)}. {advice(version)}"
        )
    installed = _version_of_hadoop_aws(spark, hadoop)
    if installed not in (None, version):
        raise errors.VersionMismatch(
            f"this driver has hadoop-aws {installed}, but Hadoop {version}. Both must have the same version. {advice(version)}"
        )


def advice(hadoop: str) -> str:
    """Return how to add the jars: to the task, or to an image."""
    built_with = SDK.get(hadoop, SDK["3.5.0"])
    sdk = [f"software.amazon.awssdk:{name}:{built_with}" for name in ("s3", "s3-transfer-manager", "sts")]
    packages = ",".join([f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk])
    return (
        f'Give the task packages="{packages}", exclude_packages="{",".join(EXCLUDED)}";'
        " or put these jars and their dependencies into the folder of Spark's own jars"
    )


def _version_of_hadoop_aws(spark: SparkSession, hadoop: Any) -> str | None:
    """Return the version of the hadoop-aws jar; None if a vendor's jar does not state it."""
    resource = hadoop.getResource(HADOOP_AWS)
    if resource is None:
        return None
    properties, stream = java_class(spark, "java.util.Properties")(), resource.openStream()
    try:
        properties.load(stream)
    finally:
        stream.close()
    version: str | None = properties.getProperty("version")
    return version


# -- confs of the bucket -----------------------------------------------------------------------------------------------


def _configure(spark: SparkSession, store: S3Store, access: Access) -> None:
    """Set the confs of the bucket. If the job sets a provider or a key for it, its credentials stay."""
    hadoop, prefix = _hadoop_conf(spark), f"fs.s3a.bucket.{store.bucket}."
    with quiet_py4j():
        has_credentials = any(hadoop.get(prefix + name) for name in (PROVIDER, ACCESS_KEY))
        for name, value in {
            **service_options(access),
            **({} if has_credentials else credential_options(access)),
        }.items():
            if hadoop.get(prefix + name) is None:
                hadoop.set(prefix + name, value)


def service_options(access: Access) -> dict[str, str]:
    """Return endpoint and region as S3A's options of one bucket."""
    return {
        "endpoint": access.endpoint,
        "endpoint.region": access.region,
        "path.style.access": str(access.path_style).lower(),
        "connection.ssl.enabled": str(urlsplit(access.endpoint).scheme == "https").lower(),
    }


def credential_options(access: Access) -> dict[str, str]:
    """Return the credentials as S3A's options of one bucket.

    Fixed keys are copied. For credentials that expire, the JVM reads and renews them from the same source as boto3. Raises
    ``NotSupportedYet`` if S3A cannot read that source.
    """
    if access.renewed:
        options = {PROVIDER: _renewing_provider(access)}
    else:
        options = {PROVIDER: SESSION if access.session_token else KEYS, ACCESS_KEY: access.access_key_id}
        options["secret.key"] = access.secret_access_key
        if access.session_token:
            options["session.token"] = access.session_token
    return _assume_role(access, options) if access.role_arn else options


def _renewing_provider(access: Access) -> str:
    if access.found_by not in RENEWING:
        raise errors.NotSupportedYet(
            f"the credentials come from {access.found_by!r}. boto3 renews them, but Spark's S3A cannot. Use keys, a role_arn"
            " in the connection, a web identity, or the role of a container or an instance"
        )
    return RENEWING[access.found_by]


def _assume_role(access: Access, options: dict[str, str]) -> dict[str, str]:
    assert access.role_arn
    role = {
        PROVIDER: ROLE,
        "assumed.role.arn": access.role_arn,
        "assumed.role.session.name": "checkpoints",
        "assumed.role.credentials.provider": options[PROVIDER],
    }
    address = urlsplit(access.sts_endpoint or "")
    # S3A takes a host; without one the SDK asks its own environment
    if address.scheme == "https" and access.sts_region:
        role |= {"assumed.role.sts.endpoint": address.netloc, "assumed.role.sts.endpoint.region": access.sts_region}
    return {**options, **role}


# -- access ----------------------------------------------------------------------------------------------------------


def _check_access(spark: SparkSession, store: S3Store) -> None:
    """Check with two requests that S3A reaches the bucket.

    The requests go through a client of their own with few retries. Spark's client would retry for minutes, for instance with
    a certificate that it does not trust.
    """
    hadoop, path = _hadoop_conf(spark), hadoop_path(spark, hadoop_uri(store.uri))
    conf = java_class(spark, "org.apache.hadoop.conf.Configuration")(hadoop)
    for name in ("attempts.maximum", "retry.limit"):
        conf.set(f"fs.s3a.bucket.{store.bucket}.{name}", "2")
    try:
        client = java_class(spark, "org.apache.hadoop.fs.FileSystem").newInstance(path.toUri(), conf)
        try:
            client.getFileStatus(path)
        finally:
            client.close()
    except Py4JJavaError as error:
        if _class_name(error) != "FileNotFoundException":
            raise explain(store.uri, error, _hadoop_version(spark)) from error


def explain(uri: str, error: Py4JJavaError, hadoop: str) -> errors.CheckpointError:
    """Return S3A's error as an error of this package, which says what to do."""
    message = error.java_exception.toString()
    why = f"Spark's S3A cannot read {uri}, though boto3 can: {message}"
    if any(name in message for name in _NOT_LINKED):
        return errors.NotInstalled(f"{why}. {advice(hadoop)}")
    if "SSL" in message or "PKIX" in message:
        return errors.StoreMisconfigured(
            f"{why}. The JVMs do not trust the certificate, and `verify` does not change that. Give driver and executors a trust store"
            " (spark.driver.extraJavaOptions, spark.executor.extraJavaOptions: -Djavax.net.ssl.trustStore=...)"
        )
    if _class_name(error) in ("AccessDeniedException", "UnknownStoreException"):
        kind = errors.StoreDenied if _class_name(error) == "AccessDeniedException" else errors.StoreMisconfigured
        return kind(f"{why}. Check the job's confs fs.s3a.* for this bucket")
    return errors.StoreUnavailable(f"{why}. Try again later")


def _class_name(error: Py4JJavaError) -> str:
    name: str = error.java_exception.getClass().getSimpleName()
    return name


def _hadoop_conf(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def _hadoop_version(spark: SparkSession) -> str:
    return str(java_class(spark, "org.apache.hadoop.util.VersionInfo").getVersion())
