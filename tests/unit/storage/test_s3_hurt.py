"""Puts in S3 with faults on the way: the outcome of one try and of ``put``. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CommitStateUnknown, StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.storage import Put, S3Store, s3
from airflow_checkpoint_provider.storage.base import put
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server

KEY = "journal/7.json"
OURS, THEIRS = b'{"nonce":"ours"}', b'{"nonce":"theirs"}'
CONFLICT: dict[str, Any] = {"status": 409, "code": "ConditionalRequestConflict"}

# The fault, whether one try certainly did nothing (else its outcome is unknown), and whether the object exists after it.
HARMS = [
    pytest.param(Harm.ERROR_BEFORE, {"status": 503, "code": "SlowDown"}, False, False, id="503 before"),
    pytest.param(Harm.ERROR_BEFORE, {"status": 500, "code": "InternalError"}, False, False, id="500 before"),
    pytest.param(Harm.ERROR_BEFORE, {"status": 429, "code": "TooManyRequests"}, False, False, id="429 before"),
    pytest.param(Harm.ERROR_BEFORE, {"status": 400, "code": "RequestTimeout"}, False, False, id="time-out before"),
    pytest.param(Harm.ERROR_BEFORE, CONFLICT, True, False, id="409 before"),
    pytest.param(Harm.ERROR_AFTER, {"status": 503, "code": "SlowDown"}, False, True, id="503 after"),
    pytest.param(Harm.ERROR_AFTER, {"status": 500, "code": "InternalError"}, False, True, id="500 after"),
    pytest.param(Harm.ERROR_AFTER, {"status": 502, "code": "Bad Gateway"}, False, True, id="502 after"),
    pytest.param(Harm.RESET_BEFORE, {}, False, False, id="reset before"),
    pytest.param(Harm.RESET_AFTER, {}, False, True, id="reset after"),
    pytest.param(Harm.SILENT_AFTER, {}, False, True, id="silent after"),
    pytest.param(Harm.LATE, {}, False, False, id="late"),
]


pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
def hurt_store(request: pytest.FixtureRequest, hurt_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a store with a read timeout of one second instead of twenty for faults without an answer."""
    if "silent" not in request.node.name:
        return hurt_store
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(hurt_store.bucket, "ckp", replace(hurt_store.settings, region_name="impatient"))


@pytest.mark.parametrize(("harm", "how", "did_nothing", "there"), HARMS)
def test_single_try_is_one_request_and_unknown_after_a_fault(
    hurt_store: S3Store,
    s3_store: S3Store,
    proxy: FaultProxy,
    harm: Harm,
    how: dict[str, Any],
    did_nothing: bool,
    there: bool,
) -> None:
    proxy.hurt("PUT", r"/journal/7\.json", harm, **how)
    if did_nothing:
        with pytest.raises(StoreUnavailable):
            hurt_store.create(KEY, OURS)
    else:
        assert hurt_store.create(KEY, OURS) is Put.UNKNOWN
    assert len(proxy.requests) == 1
    assert s3_store.read(KEY) == (OURS if there else None)


@pytest.mark.parametrize(("harm", "how", "did_nothing", "there"), HARMS)
@pytest.mark.parametrize("times", [1, 2])
def test_own_put_is_recognized_after_any_fault(
    hurt_store: S3Store,
    s3_store: S3Store,
    proxy: FaultProxy,
    harm: Harm,
    how: dict[str, Any],
    did_nothing: bool,
    there: bool,
    times: int,
) -> None:
    proxy.hurt("PUT", r"/journal/7\.json", harm, times=times, **how)
    assert put(hurt_store, KEY, OURS) == (Put.STORED, OURS)
    proxy.land()
    assert s3_store.read(KEY) == OURS


@pytest.mark.parametrize(("harm", "how", "did_nothing", "there"), HARMS)
def test_foreign_put_is_recognized_after_any_fault(
    hurt_store: S3Store,
    s3_store: S3Store,
    proxy: FaultProxy,
    harm: Harm,
    how: dict[str, Any],
    did_nothing: bool,
    there: bool,
) -> None:
    s3_store.create(KEY, THEIRS)
    proxy.hurt("PUT", r"/journal/7\.json", harm, **how)
    assert put(hurt_store, KEY, OURS) == (Put.EXISTS, THEIRS)
    proxy.land()
    assert s3_store.read(KEY) == THEIRS


def test_own_put_that_is_delivered_twice_is_stored(hurt_store: S3Store, proxy: FaultProxy) -> None:
    """A proxy delivers the request twice: the answer is 412 without a retry."""
    proxy.hurt("PUT", r"/journal/", Harm.TWICE, times=2)
    assert hurt_store.create(KEY, OURS) is Put.EXISTS
    assert put(hurt_store, "journal/8.json", OURS) == (Put.STORED, OURS)


def test_put_that_lands_after_the_deadline_is_unknown(
    hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy
) -> None:
    proxy.hurt("PUT", r"/journal/", Harm.LATE, times=100)
    assert put(hurt_store, KEY, OURS, patience=3) == (Put.UNKNOWN, None)
    assert s3_store.read(KEY) is None
    proxy.land()
    assert s3_store.read(KEY) == OURS


def test_late_put_after_a_foreign_put_changes_nothing(
    hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy
) -> None:
    proxy.hurt("PUT", r"/journal/", Harm.LATE)
    assert hurt_store.create(KEY, OURS) is Put.UNKNOWN
    assert s3_store.create(KEY, THEIRS) is Put.STORED
    proxy.land()
    assert put(hurt_store, KEY, OURS) == (Put.EXISTS, THEIRS)


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


def test_answer_without_an_etag_is_unknown(hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("PUT", r"/journal/", Harm.WITHOUT_ETAG)
    with pytest.raises(CommitStateUnknown, match=r"has no ETag.*Check endpoint_url"):
        put(hurt_store, KEY, OURS)
    assert s3_store.read(KEY) == OURS


def test_body_changed_on_the_way_is_refused_and_sent_again(
    hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.hurt("PUT", r"/journal/", Harm.FLIPPED_BEFORE)
    with pytest.raises(StoreUnavailable, match="XAmzContentSHA256Mismatch"):
        hurt_store.create(KEY, OURS)
    assert s3_store.read(KEY) is None
    proxy.hurt("PUT", r"/journal/", Harm.FLIPPED_BEFORE)
    assert put(hurt_store, KEY, OURS) == (Put.STORED, OURS)
    assert s3_store.read(KEY) == OURS
