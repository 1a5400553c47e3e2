"""The confs of S3A for the checkpoints' bucket, and the advice about jars."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.location.files import hadoop_uri
from airflow_checkpoint_provider.spark.s3a import (
    ACCELERATOR,
    EXCLUDED,
    FOR_ROLES,
    NEEDED,
    advice,
    credential_options,
    service_options,
)
from airflow_checkpoint_provider.storage.s3_credentials import Access
from tests.support.drivers import ROOT


def access(**other: Any) -> Access:
    known: dict[str, Any] = {
        "endpoint": "http://store:9000", "region": "us-east-1", "path_style": True, "found_by": "explicit", "renewed": False,
        "access_key_id": "AKIAEXAMPLE", "secret_access_key": "the-secret", "session_token": None,
    }  # fmt: skip
    return Access(**known | other)


@pytest.mark.parametrize(
    ("uri", "spark"),
    [
        ("s3://lake/a~3ab", "s3a://lake/a~3ab"),
        ("file:///data/s3://x", "file:///data/s3://x"),
        ("memory://a", "memory://a"),
    ],
)
def test_hadoop_uri_has_the_scheme_of_spark(uri: str, spark: str) -> None:
    assert hadoop_uri(uri) == spark


def test_service_options_name_endpoint_and_region() -> None:
    assert service_options(access()) == {
        "endpoint": "http://store:9000", "endpoint.region": "us-east-1", "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }  # fmt: skip
    amazon = service_options(access(endpoint="https://s3.amazonaws.com", path_style=False))
    assert (amazon["path.style.access"], amazon["connection.ssl.enabled"]) == ("false", "true")


def test_fixed_keys_are_copied() -> None:
    assert credential_options(access()) == {
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": "AKIAEXAMPLE",
        "secret.key": "the-secret",
    }


def test_temporary_keys_are_copied_with_their_token() -> None:
    options = credential_options(access(session_token="the-token"))
    assert options["aws.credentials.provider"] == "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    assert options["session.token"] == "the-token"


@pytest.mark.parametrize(
    ("found_by", "provider"),
    [
        ("iam-role", "IAMInstanceCredentialsProvider"),
        ("container-role", "IAMInstanceCredentialsProvider"),
        ("assume-role-with-web-identity", "WebIdentityTokenFileCredentialsProvider"),
    ],
)
def test_renewed_credentials_are_not_copied(found_by: str, provider: str) -> None:
    (given,) = credential_options(access(found_by=found_by, renewed=True, session_token="the-token")).values()
    assert given.rpartition(".")[2] == provider


@pytest.mark.parametrize("found_by", ["sso", "assume-role", "custom-process"])
def test_credentials_that_only_boto3_renews_are_refused(found_by: str) -> None:
    with pytest.raises(
        NotSupportedYet, match=f"the credentials come from '{found_by}'. boto3 renews them, but Spark's S3A cannot"
    ):
        credential_options(access(found_by=found_by, renewed=True))


def test_role_is_assumed_with_the_credentials() -> None:
    amazon = {"sts_endpoint": "https://sts.eu-central-1.amazonaws.com", "sts_region": "eu-central-1"}
    options = credential_options(access(role_arn="arn:aws:iam::1:role/checkpoints", **amazon))
    assert options["aws.credentials.provider"].endswith(".AssumedRoleCredentialProvider")
    assert options["assumed.role.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    assert options["assumed.role.arn"] == "arn:aws:iam::1:role/checkpoints"
    assert options["access.key"] == "AKIAEXAMPLE"
    assert options["assumed.role.sts.endpoint"] == "sts.eu-central-1.amazonaws.com", "S3A takes a host"
    assert options["assumed.role.sts.endpoint.region"] == "eu-central-1"


def test_redaction_rule_of_spark_hides_all_secrets() -> None:
    hides = re.compile(r"(?i)secret|password|token|access[.]?key")
    options = credential_options(access(session_token="the-token"))
    shown = {name: value for name, value in options.items() if not hides.search(f"fs.s3a.bucket.lake.{name}")}
    assert set(shown) == {"aws.credentials.provider"}


def test_advice_names_the_jars_of_the_tests() -> None:
    """Coordinates and versions of our own list, so that what people are told is tested."""
    pom = (ROOT / "tests" / "s3a" / "pom.xml").read_text()
    for name, value in re.findall(r"<(hadoop|sdk)>(.*?)</", pom):
        pom = pom.replace(f"${{{name}}}", value)
    maven = "{http://maven.apache.org/POM/4.0.0}"
    listed = {
        tuple(dependency.findtext(f"{maven}{part}", "") for part in ("groupId", "artifactId", "version"))
        for dependency in ET.fromstring(pom).iter(f"{maven}dependency")
    }
    advised = re.search(r'packages="(.*?)", exclude_packages="(.*?)"', advice("3.5.0"))
    assert advised
    packages = {tuple(package.split(":")) for package in advised[1].split(",")}
    assert packages == {jar for jar in listed if jar[1] != "analyticsaccelerator-s3"}, "that jar comes with hadoop-aws"
    assert {f"{file_set}:{name}" for file_set, name, _ in listed} == {
        *NEEDED.values(),
        *ACCELERATOR.values(),
        *FOR_ROLES.values(),
    }
    left_out = re.search(r"<excludeGroupIds>(.*?)</", pom)
    assert left_out
    excluded = {package.partition(":")[0] for package in advised[2].split(",")} - {
        "software.amazon.awssdk",
        "org.wildfly.openssl",
    }
    assert excluded == set(left_out[1].split(","))
    assert "software.amazon.awssdk:bundle" in EXCLUDED
