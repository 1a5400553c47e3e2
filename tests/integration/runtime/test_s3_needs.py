"""The needs of a driver for checkpoints in S3. If one is missing, the driver refuses before any work and names it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.s3a import HADOOP_AWS
from airflow_checkpoint_provider.storage import S3Store, s3_credentials
from tests.support.drivers import JARS, ROOT
from tests.support.launches import Launches
from tests.support.runs import Ended, Home
from tests.support.s3server import S3Server

PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3:2.35.4,software.amazon.awssdk:s3-transfer-manager:2.35.4"


@pytest.fixture
def home(tmp_path: Path, s3: S3Server) -> Home:
    """Whose drivers have no S3A."""
    home = Home(tmp_path / "home", s3=s3)
    home.env = {}
    return home


@pytest.fixture
def launches(home: Home) -> Launches:
    return Launches(home.store)


def refused(home: Home, launches: Launches) -> Ended:
    """A driver that a task launched, with the keys of its connection; no epoch may be taken."""
    home.env |= s3_credentials.keys(home.store)
    ended = home.run(submit=True, confs=launches.plan())
    assert ended.code == ExitCode.REFUSED, ended.log
    assert launches.state().attempts == ()
    assert ended.tasks == {}
    assert "REFUSED: " in ended.log
    return ended


def with_jars(home: Home, *jars: Path) -> None:
    home.env["SPARK_DIST_CLASSPATH"] = ":".join(map(str, jars))


def test_driver_without_jars_is_refused_with_their_names(home: Home, launches: Launches) -> None:
    refused(home, launches)
    refusal = launches.refusal()
    assert refusal.startswith(
        "Spark reaches S3 with jars that this driver lacks: org.apache.hadoop:hadoop-aws, software"
    )
    assert f'packages="{PACKAGES},' in refusal
    assert 'exclude_packages="software.amazon.awssdk:bundle,' in refusal
    assert refusal.endswith("[CKP607]")


@pytest.mark.slow  # test_on_s3 runs drivers with jars
def test_driver_runs_with_jars_of_the_task(home: Home, launches: Launches) -> None:
    """As ``jars=`` and ``packages=`` bring them: Spark adds them after the JVM has started."""
    home.env |= s3_credentials.keys(home.store)
    jars = ",".join(f"file://{jar}" for jar in sorted(JARS.glob("*.jar")))
    ended = home.run(submit=True, confs={**launches.plan(), "spark.jars": jars})
    assert ended.code == 0, ended.log
    assert launches.ends() == [("finished", 0)]


@pytest.mark.slow  # tests/unit/storage/test_s3_store.py: missing boto3 names the package; above, a driver is refused
def test_driver_without_boto3_is_refused_with_its_name(home: Home, launches: Launches, tmp_path: Path) -> None:
    """Who cannot write to the store has standard output alone; the task reads it there."""
    (tmp_path / "boto3.py").write_text("raise ImportError(\"No module named 'boto3'\")")
    home.env["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    log = refused(home, launches).log
    (line,) = (line for line in log.splitlines() if line.startswith("REFUSED: "))
    assert "checkpoints in S3 need boto3, which cannot be imported in this Python" in line
    assert "on a Spark driver pip install boto3" in line
    assert line.endswith("[CKP607]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("analyticsaccelerator-s3", "lacks: software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3. Give"),
        ("s3-transfer-manager", "lacks: software.amazon.awssdk:s3-transfer-manager. Give"),
        (
            "apache-client",
            "though boto3 can: java.lang.NoClassDefFoundError: software/amazon/awssdk/http/apache/Apache",
        ),
    ],
)
def test_driver_without_one_jar_is_refused_with_its_name(home: Home, launches: Launches, name: str, gone: str) -> None:
    with_jars(home, *(jar for jar in JARS.glob("*.jar") if not jar.name.startswith(name)))
    refused(home, launches)
    assert gone in launches.refusal()
    assert PACKAGES in launches.refusal()


@pytest.mark.slow
def test_driver_with_another_version_of_hadoop_aws_is_refused(home: Home, launches: Launches, tmp_path: Path) -> None:
    other = tmp_path / "hadoop-aws-3.4.1.jar"
    with zipfile.ZipFile(JARS / "hadoop-aws-3.5.0.jar") as ours, zipfile.ZipFile(other, "w") as theirs:
        for name in ours.namelist():
            body = ours.read(name)
            theirs.writestr(name, body.replace(b"3.5.0", b"3.4.1") if name == HADOOP_AWS else body)
    with_jars(home, other, *(jar for jar in JARS.glob("*.jar") if not jar.name.startswith("hadoop-aws")))
    refused(home, launches)
    assert "this driver has hadoop-aws 3.4.1, but Hadoop 3.5.0. Both must have the same version." in launches.refusal()
    assert PACKAGES in launches.refusal()
    assert "[CKP606]" in launches.refusal()


@pytest.mark.slow
def test_driver_without_credentials_is_refused(home: Home, launches: Launches) -> None:
    """As in cluster mode, where a connection's keys stay in Airflow."""
    home.env |= {
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    ended = home.run(submit=True, confs=launches.plan())
    assert ended.code == ExitCode.REFUSED, ended.log
    assert "REFUSED: there are no credentials for s3://" in ended.log


# -- a certificate that nobody knows -----------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, signed by itself, with its key; and a trust store for JVMs that holds it."""
    pem, store = tmp_path / "store.pem", tmp_path / "trust.p12"
    request = {"alg": "rsa:2048", "subject": "/CN=127.0.0.1", "names": "subjectAltName=IP:127.0.0.1"}
    run("openssl", "req", "-x509", "-newkey", request["alg"], "-nodes", "-days", "2", "-subj", request["subject"],
        "-addext", request["names"], "-keyout", str(pem), "-out", str(tmp_path / "cert.pem"))  # fmt: skip
    pem.write_text(pem.read_text() + (tmp_path / "cert.pem").read_text())
    run("keytool", "-importcert", "-noprompt", "-alias", "store", "-file", str(tmp_path / "cert.pem"), "-storepass",
        "changeit", "-storetype", "PKCS12", "-keystore", str(store))  # fmt: skip
    return pem


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60, capture_output=True)


@pytest.mark.slow
def test_driver_with_an_unknown_certificate_is_refused_until_it_is_trusted(tmp_path: Path, certificate: Path) -> None:
    """boto3 has ``verify``; the JVM wants a trust store, and is told so before any work."""
    with S3Server(certificate) as s3:
        home = Home(tmp_path / "home", "one.py", s3=s3)
        assert isinstance(home.store, S3Store)
        store = S3Store(home.store.bucket, "ckp", s3.settings(verify=str(certificate)))
        launches = Launches(store)
        home.env |= s3_credentials.keys(store)
        ended = home.run(submit=True, confs=launches.plan())
        assert ended.code == ExitCode.REFUSED, ended.log
        assert "The JVMs do not trust the certificate, and `verify` does not change that" in launches.refusal()
        trust = f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.p12'} -Djavax.net.ssl.trustStorePassword=changeit"
        ended = home.run(submit=True, confs={**launches.plan(2), "spark.driver.extraJavaOptions": trust})
        assert ended.code == 0, ended.log
        assert ended.result["rows"] == 3
