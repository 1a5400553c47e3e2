"""Rows in S3: what Spark needs for it, and how it learns to reach the bucket of the checkpoints. Runs in the Spark driver.

The journal goes through boto3, rows through Hadoop's S3A, whose jars are not in Spark. All that S3A is told stands in confs
of this one bucket, so that the job's own buckets keep their own service and keys. What the job says of that bucket itself
(``fs.s3a.bucket.<bucket>.*``) stays. Names of secret confs are such that Spark hides their values wherever it shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    NotInstalled,
    NotSupportedYet,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
    VersionMismatch,
)
from airflow_checkpoint_provider.storage import S3Store, Store
from airflow_checkpoint_provider.storage.s3_credentials import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SDK = "2.35.4"  # with which hadoop-aws 3.5.0 was built; older ones lack fields that it uses
NEEDED = {
    "org.apache.hadoop.fs.s3a.S3AFileSystem": "org.apache.hadoop:hadoop-aws",
    "software.amazon.s3.analyticsaccelerator.request.ObjectClient": "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3",
    "software.amazon.awssdk.services.s3.S3Client": "software.amazon.awssdk:s3",
    "software.amazon.awssdk.transfer.s3.S3TransferManager": "software.amazon.awssdk:s3-transfer-manager",
}
"""A class of each jar that brings the others along."""

FOR_ROLES = {"software.amazon.awssdk.services.sts.StsClient": "software.amazon.awssdk:sts"}

EXCLUDED = (  # the bundle is all of Amazon in 686 MB; of the others Spark has its own, and newer ones
    "software.amazon.awssdk:bundle", "org.wildfly.openssl:wildfly-openssl", "io.netty:*", "org.slf4j:*",
    "commons-codec:commons-codec", "commons-logging:commons-logging", "org.apache.httpcomponents:*",
)  # fmt: skip
HADOOP_AWS = "META-INF/maven/org.apache.hadoop/hadoop-aws/pom.properties"

KEYS = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
SESSION = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ROLE = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
RENEWING = {  # what boto3 calls it -> who gets the same in the JVM, and renews it
    "iam-role": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
    "container-role": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
    "assume-role-with-web-identity": "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
}
PROVIDER, ACCESS_KEY = "aws.credentials.provider", "access.key"
_NOT_LINKED = ("NoClassDefFoundError", "ClassNotFoundException", "NoSuchMethodError", "NoSuchFieldError")


def hadoop_uri(uri: str) -> str:
    """As Spark writes it: for ``s3://`` it has no file system."""
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


def prepare(spark: SparkSession, store: Store) -> None:
    """Before anything is read or written below ``store``: a store in S3 is looked at with boto3 and with S3A.

    Raises ``NotInstalled`` and ``VersionMismatch``, which name what to add, and what the store says to either of them.
    """
    if not isinstance(store, S3Store):
        return
    found = store.access()
    next(iter(store.folders("jobs")), None)  # boto3 explains better, and S3A is patient with what does not answer
    _check_jars(spark, {**NEEDED, **FOR_ROLES} if found.role_arn or found.renewed else NEEDED)
    _tell(spark, store, found)
    _look(spark, store)


# -- jars --------------------------------------------------------------------------------------------------------------


def _check_jars(spark: SparkSession, needed: Mapping[str, str]) -> None:
    hadoop = _hadoop_conf(spark)
    version = _jvm(spark).org.apache.hadoop.util.VersionInfo.getVersion()
    missing = [jar for name, jar in needed.items() if hadoop.getResource(f"{name.replace('.', '/')}.class") is None]
    if missing:
        raise NotInstalled(
            f"Spark reaches S3 with jars that this driver lacks: {', '.join(missing)}. {advice(version)}"
        )
    found = _version_of_hadoop_aws(spark, hadoop)
    if found not in (None, version):
        raise VersionMismatch(
            f"hadoop-aws {found} is in this driver, and Hadoop {version}: they must be of one version. {advice(version)}"
        )


def advice(hadoop: str) -> str:
    """What to write into the task, and what an image needs."""
    sdk = [f"software.amazon.awssdk:{name}:{SDK}" for name in ("s3", "s3-transfer-manager", "sts")]
    packages = ",".join([f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk])
    return (
        f'Give the task packages="{packages}", exclude_packages="{",".join(EXCLUDED)}"; or put these jars, with what they'
        " depend on, where Spark's own are"
    )


def _version_of_hadoop_aws(spark: SparkSession, hadoop: Any) -> str | None:
    """None if a vendor's jar does not say."""
    resource = hadoop.getResource(HADOOP_AWS)
    if resource is None:
        return None
    properties, stream = _jvm(spark).java.util.Properties(), resource.openStream()
    try:
        properties.load(stream)
    finally:
        stream.close()
    version: str | None = properties.getProperty("version")
    return version


# -- confs of the bucket -----------------------------------------------------------------------------------------------


def _tell(spark: SparkSession, store: S3Store, found: Access) -> None:
    hadoop, prefix = _hadoop_conf(spark), f"fs.s3a.bucket.{store.bucket}."
    with _unheard():
        has_its_own = any(hadoop.get(prefix + name) for name in (PROVIDER, ACCESS_KEY))
        for name, value in {**service(found), **({} if has_its_own else credentials(found))}.items():
            if hadoop.get(prefix + name) is None:
                hadoop.set(prefix + name, value)


@contextmanager
def _unheard() -> Iterator[None]:
    """At DEBUG, which a script may have set for all, py4j logs each argument of each call."""
    heard = logging.getLogger("py4j")
    before = heard.level
    heard.setLevel(logging.INFO)
    try:
        yield
    finally:
        heard.setLevel(before)


def service(found: Access) -> dict[str, str]:
    """Where it is, as S3A's options of one bucket."""
    return {
        "endpoint": found.endpoint,
        "endpoint.region": found.region,
        "path.style.access": str(found.path_style).lower(),
        "connection.ssl.enabled": str(urlsplit(found.endpoint).scheme == "https").lower(),
    }


def credentials(found: Access) -> dict[str, str]:
    """Those that stay are copied; for those that end the JVM gets its own from where boto3 has them."""
    if found.renewed:
        options = {PROVIDER: _renewing(found)}
    else:
        options = {PROVIDER: SESSION if found.session_token else KEYS, ACCESS_KEY: found.access_key_id}
        options["secret.key"] = found.secret_access_key
        if found.session_token:
            options["session.token"] = found.session_token
    return _of_role(found, options) if found.role_arn else options


def _renewing(found: Access) -> str:
    if found.found_by not in RENEWING:
        raise NotSupportedYet(
            f"the credentials here are those of {found.found_by!r}: boto3 renews them, Spark's S3A cannot. Use keys, a role_arn"
            " in the connection, a web identity, or the role of a container or an instance"
        )
    return RENEWING[found.found_by]


def _of_role(found: Access, options: dict[str, str]) -> dict[str, str]:
    assert found.role_arn
    role = {
        PROVIDER: ROLE,
        "assumed.role.arn": found.role_arn,
        "assumed.role.session.name": "checkpoints",
        "assumed.role.credentials.provider": options[PROVIDER],
    }
    address = urlsplit(found.sts_endpoint or "")
    if address.scheme == "https" and found.sts_region:  # S3A takes a host; without one the SDK asks its own environment
        role |= {"assumed.role.sts.endpoint": address.netloc, "assumed.role.sts.endpoint.region": found.sts_region}
    return {**options, **role}


# -- a look ------------------------------------------------------------------------------------------------------------


def _look(spark: SparkSession, store: S3Store) -> None:
    """Two requests, before any work is done: does S3A reach what boto3 reaches?

    By a client of its own: the one that Spark is going to use tries for minutes what does not work, as a bad certificate.
    """
    hadoop, jvm = _hadoop_conf(spark), _jvm(spark).org.apache.hadoop
    path, impatient = jvm.fs.Path(hadoop_uri(store.uri)), jvm.conf.Configuration(hadoop)
    for name in ("attempts.maximum", "retry.limit"):
        impatient.set(f"fs.s3a.bucket.{store.bucket}.{name}", "2")
    try:
        client = jvm.fs.FileSystem.newInstance(path.toUri(), impatient)
        try:
            client.getFileStatus(path)
        finally:
            client.close()
    except Py4JJavaError as error:
        if _name(error) != "FileNotFoundException":
            raise explain(store.uri, error, jvm.util.VersionInfo.getVersion()) from error


def explain(uri: str, error: Py4JJavaError, hadoop: str) -> CheckpointError:
    """What S3A says, as our error, with what to do."""
    said = error.java_exception.toString()
    why = f"Spark's S3A cannot look at {uri}, though boto3 can: {said}"
    if any(name in said for name in _NOT_LINKED):
        return NotInstalled(f"{why}. {advice(hadoop)}")
    if "SSL" in said or "PKIX" in said:
        return StoreMisconfigured(
            f"{why}. The JVMs do not trust the certificate, whatever `verify` says: give driver and executors a trust store"
            " (spark.driver.extraJavaOptions, spark.executor.extraJavaOptions: -Djavax.net.ssl.trustStore=...)"
        )
    if _name(error) in ("AccessDeniedException", "UnknownStoreException"):
        kind = StoreDenied if _name(error) == "AccessDeniedException" else StoreMisconfigured
        return kind(f"{why}. Look at what the job's confs fs.s3a.* say of this bucket")
    return StoreUnavailable(f"{why}. Trying again may help")


def _name(error: Py4JJavaError) -> str:
    name: str = error.java_exception.getClass().getSimpleName()
    return name


def _hadoop_conf(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
