"""Puts in S3 with faults on the way: the outcome of one try and of ``put``. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.storage import Put, S3Store, s3
from airflow_checkpoint_provider.storage.base import put
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server
from tests.unit.storage.s3_contract import KEY, OURS, PutContract

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
def hurt_store(request: pytest.FixtureRequest, hurt_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a store with a read timeout of one second instead of twenty for faults without an answer."""
    if "silent" not in request.node.name:
        return hurt_store
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(hurt_store.bucket, "ckp", replace(hurt_store.settings, region_name="impatient"))


class TestPuts(PutContract):
    """With the server of the tests."""


@pytest.mark.parametrize("harm", [Harm.RESET_AFTER, Harm.LATE])
def test_put_is_unknown_if_the_token_expires_between_tries(
    s3: S3Server, bucket: str, proxy: FaultProxy, harm: Harm
) -> None:
    s3.keys["SESSION"] = Key("s", token="t")
    store = S3Store(bucket, "ckp", s3.settings("SESSION", endpoint_url=proxy.url))
    proxy.hurt("PUT", r"/journal/", harm)
    assert store.create(KEY, OURS) is Put.UNKNOWN
    s3.keys["SESSION"].expires = 0
    with pytest.raises(StoreDenied, match="ExpiredToken"):
        put(store, KEY, OURS)
    s3.keys["SESSION"].expires = float("inf")
    proxy.hurt("PUT", r"/journal/", harm)
    proxy.hurt("GET", r"/journal/", Harm.ERROR_BEFORE, times=100, status=400, code="ExpiredToken")
    proxy.hurt("PUT", r"/journal/", Harm.ERROR_BEFORE, times=100, status=400, code="ExpiredToken")
    assert put(store, "journal/8.json", OURS) == (Put.UNKNOWN, None)
