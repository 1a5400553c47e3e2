"""An S3 server for all tests of stores, Ceph for the slow ones, and a bucket for each. Runs anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.storage import S3Store
from tests.support.ceph import Ceph, NoCeph
from tests.support.s3faults import FaultProxy
from tests.support.s3server import S3Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """As it was at first, whatever the test makes of it; and nothing of this machine's own settings for AWS."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    before = dict(vars(s3_server)), dict(s3_server.keys)
    s3_server.requests.clear()
    yield s3_server
    vars(s3_server).update(before[0])
    s3_server.keys = before[1]


@pytest.fixture
def bucket(s3: S3Server) -> str:
    name = f"lake-{next(_numbers)}"
    s3.make_bucket(name)
    s3.requests.clear()
    return name


@pytest.fixture
def s3_store(s3: S3Server, bucket: str) -> S3Store:
    return S3Store(bucket, "ckp", s3.settings())


@pytest.fixture(scope="session")
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def proxy(s3: S3Server, s3_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """It hurts nothing until it is told to."""
    s3_proxy.requests.clear()
    yield s3_proxy
    s3_proxy.heal()
    s3_proxy.land()


@pytest.fixture
def hurt_store(s3: S3Server, bucket: str, proxy: FaultProxy) -> S3Store:
    """The same keys as ``s3_store``, behind the proxy."""
    return S3Store(bucket, "ckp", s3.settings(endpoint_url=proxy.url))


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    try:
        ceph = Ceph(tmp_path_factory.mktemp("ceph"))
    except NoCeph as error:
        pytest.skip(str(error))
    with ceph:
        yield ceph


@pytest.fixture
def ceph_store(ceph: Ceph) -> S3Store:
    name = f"lake-{next(_numbers)}"
    ceph.make_bucket(name)
    return S3Store(name, "ckp", ceph.settings())
