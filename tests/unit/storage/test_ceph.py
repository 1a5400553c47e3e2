"""The S3 store with a real service, Ceph: faults of puts, races, the journal, and errors. Runs on Debian 12."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import botocore.auth
import pytest
from botocore.exceptions import ClientError

from airflow_checkpoint_provider.coordinator.restore import verified
from airflow_checkpoint_provider.errors import Fenced, StoreDenied, StoreMisconfigured
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.storage import Put, S3Store, probe, s3
from tests.support.acknowledgements import bystander, driver, take
from tests.support.ceph import Ceph
from tests.support.garbage import retire
from tests.support.s3faults import FaultProxy
from tests.unit.storage.s3_acts import ACTS, EACH, refusal
from tests.unit.storage.s3_contract import JournalContract, PutContract, RaceContract

pytestmark = pytest.mark.slow


@pytest.fixture
def s3_store(ceph_store: S3Store) -> S3Store:
    return ceph_store


@pytest.fixture(scope="session")
def s3_proxy(ceph: Ceph) -> Iterator[FaultProxy]:
    with FaultProxy(ceph.url) as proxy:
        yield proxy


@pytest.fixture
def hurt_store(ceph: Ceph, ceph_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a store behind the proxy with a read timeout of one second instead of twenty."""
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(ceph_store.bucket, "ckp", ceph.settings(endpoint_url=proxy.url, region_name="impatient"))


class TestPuts(PutContract):
    """With Ceph, by the fixtures above."""


class TestJournal(JournalContract):
    """The same."""


class TestRace(RaceContract):
    """The same."""


def keys(store: S3Store, prefix: str = "", after: str = "") -> list[str]:
    return [listed.key for listed in store.list(prefix, after)]


def test_probe_passes_ceph(ceph: Ceph, ceph_store: S3Store) -> None:
    probe(ceph_store)
    assert ceph.client.list_objects_v2(Bucket=ceph_store.bucket)["KeyCount"] == 0


def versions(ceph: Ceph, store: S3Store, status: Any) -> None:
    ceph.client.put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": status})


def test_versioned_bucket_is_refused(ceph: Ceph, ceph_store: S3Store) -> None:
    """In a versioned bucket Ceph 16 ignores ``If-None-Match`` and overwrites; newer versions and S3 do not."""
    versions(ceph, ceph_store, "Enabled")
    assert ceph_store.create("journal/0", b"first") is ceph_store.create("journal/0", b"second") is Put.STORED
    assert ceph_store.read("journal/0") == b"second"
    with pytest.raises(StoreMisconfigured, match=r"a second put of the same key was not refused.*without versioning"):
        probe(ceph_store)
    versions(ceph, ceph_store, "Suspended")
    probe(ceph_store)


def test_list_and_delete_more_than_a_thousand_keys(ceph: Ceph, ceph_store: S3Store) -> None:
    filled = [f"journal/{n:016}" for n in range(2_100)]
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda key: ceph_store.create(key, b"x"), filled)) == {Put.STORED}
    assert keys(ceph_store) == filled
    assert keys(ceph_store, "journal", filled[1_000]) == filled[1_001:]
    with pytest.raises(ClientError, match="400"):  # so it matters that the store asks for a thousand at a time
        ceph.client.delete_objects(
            Bucket=ceph_store.bucket, Delete={"Objects": [{"Key": f"ckp/{key}"} for key in filled[:1_001]]}
        )
    ceph_store.delete(filled[:1_050])
    assert keys(ceph_store) == filled[1_050:]
    ceph_store.delete_under("journal")
    assert keys(ceph_store) == []


@EACH
@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"secret_access_key": "another"}, "SignatureDoesNotMatch"), ({"access_key_id": "NOBODY"}, "InvalidAccessKeyId")],
)
def test_wrong_credentials_are_denied(
    ceph: Ceph, ceph_store: S3Store, wrong: dict[str, str], code: str, act: Callable[[S3Store], object]
) -> None:
    store = S3Store(ceph_store.bucket, "ckp", ceph.settings(**wrong))
    assert f": {code} (403). Check key id and secret" in refusal(act, store, StoreDenied)


@EACH
def test_wrong_clock_is_denied(
    ceph_store: S3Store, act: Callable[[S3Store], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = botocore.auth.get_current_datetime  # type: ignore[attr-defined]

    def soon(**how: Any) -> datetime:
        later: datetime = now(**how) + timedelta(minutes=16)
        return later

    monkeypatch.setattr(botocore.auth, "get_current_datetime", soon)
    assert ": RequestTimeTooSkewed (403). Set the clock" in refusal(act, ceph_store, StoreDenied)


@EACH
def test_missing_bucket_is_misconfigured(ceph: Ceph, act: Callable[[S3Store], object]) -> None:
    message = refusal(act, S3Store("no-such-lake", "ckp", ceph.settings()), StoreMisconfigured)
    assert ": NoSuchBucket (404). Create the bucket" in message


def test_missing_right_is_named_and_never_taken_for_absent(ceph: Ceph, ceph_store: S3Store) -> None:
    ceph_store.create("journal/1", b"x")
    for names, action, what in (
        (("write", "overwrite"), "s3:PutObject", "/*"),
        (("read",), "s3:GetObject", "/*"),
        (("list", "folders", "delete under"), "s3:ListBucket", ""),
        (("delete", "delete many"), "s3:DeleteObject", "/*"),
    ):
        deny = {"Effect": "Deny", "Principal": "*", "Action": action}
        policy = {
            "Version": "2012-10-17", "Statement": [deny | {"Resource": f"arn:aws:s3:::{ceph_store.bucket}{what}"}]
        }  # fmt: skip
        ceph.client.put_bucket_policy(Bucket=ceph_store.bucket, Policy=json.dumps(policy))
        for name in names:
            assert f": AccessDenied (403). Allow {action} on" in refusal(ACTS[name], ceph_store, StoreDenied)


def test_checkpoints_of_two_attempts_are_taken_deleted_and_verified(ceph_store: S3Store) -> None:
    """Two attempts without Spark: the second fences the first, and a third process verifies and deletes checkpoints."""
    first = driver(ceph_store, retention=KeepLatest(2))
    for _ in range(3):
        take(first)
    assert retire(first) == (1,)
    second = driver(ceph_store, try_number=2, retention=KeepLatest(2))
    with pytest.raises(Fenced):
        take(first)
    take(second)
    other = bystander(ceph_store)
    newest = other.state.restore_point()
    assert newest
    assert newest.id == 4
    assert [verified(other, checkpoint)[1] for checkpoint in other.state.retained] == [2, 2, 2]
    assert retire(other) == (2,)
    assert list(ceph_store.folders(other.keys.prefix)) == ["chk-3", "chk-4", "journal", "state"]
