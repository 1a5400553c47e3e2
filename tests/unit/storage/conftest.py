"""The store in S3, a proxy that hurts it, and Ceph for the slow tests. Runs anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from botocore.retries.standard import ExponentialBackoff

from airflow_checkpoint_provider.storage import S3Store
from tests.support.ceph import Ceph, NoCeph
from tests.support.s3faults import FaultProxy
from tests.support.s3server import S3Server

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boto3 try again at once."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)


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
