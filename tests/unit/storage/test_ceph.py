"""The S3 store before a real service, Ceph's: puts that are hurt, races, the journal, each refusal. Runs on Debian 12."""

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
from tests.support.garbage import expire
from tests.support.s3faults import FaultProxy
from tests.unit.storage.test_s3_errors import ACTS, EACH, refusal
from tests.unit.storage.test_s3_hurt import (  # noqa: F401  # collected here again, with the fixtures below
    test_a_body_that_was_changed_on_the_way_is_refused_and_sent_again,
    test_done_counts_with_an_etag_only,
    test_exists_can_be_said_of_the_first_try_of_our_own,
    test_one_try_is_one_request_and_says_no_more_than_it_knows,
    test_what_lands_after_another_ones_put_changes_nothing,
    test_what_lands_after_the_deadline_was_called_unknown,
    test_whatever_hurt_it_another_ones_is_known_as_another_ones,
    test_whatever_hurt_it_our_put_is_known_as_ours,
)
from tests.unit.storage.test_s3_journal import (  # noqa: F401  # the same
    impatient,
    journal,
    test_an_answer_that_the_tail_is_absent_is_read_again_where_it_arrives_cut,
    test_an_entry_that_arrives_cut_is_read_again_or_not_believed,
    test_exists_that_is_really_anothers_is_lost_and_decided_again,
    test_six_writers_while_a_quarter_of_the_puts_is_hurt,
    test_what_lands_after_the_deadline_was_told_as_unknown_and_is_not_done_twice,
    test_what_lands_before_the_deadline_is_done,
    test_what_lands_late_loses_to_who_wrote_meanwhile,
)
from tests.unit.storage.test_s3_race import (  # noqa: F401  # the same
    test_of_32_processes_exactly_one_wins_and_all_read_what_it_wrote,
)

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
    """Behind the proxy; waits a second, and not twenty, where an answer never comes."""
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(ceph_store.bucket, "ckp", ceph.settings(endpoint_url=proxy.url, region_name="impatient"))


def keys(store: S3Store, prefix: str = "", after: str = "") -> list[str]:
    return [listed.key for listed in store.list(prefix, after)]


def test_it_can_hold_checkpoints(ceph: Ceph, ceph_store: S3Store) -> None:
    probe(ceph_store)
    assert ceph.client.list_objects_v2(Bucket=ceph_store.bucket)["KeyCount"] == 0


def versions(ceph: Ceph, store: S3Store, status: Any) -> None:
    ceph.client.put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": status})


def test_a_bucket_that_keeps_versions_is_refused_until_it_does_not(ceph: Ceph, ceph_store: S3Store) -> None:
    """There Ceph 16 takes ``If-None-Match`` and overwrites, as newer ones and S3 do not."""
    versions(ceph, ceph_store, "Enabled")
    assert ceph_store.create("journal/0", b"first") is ceph_store.create("journal/0", b"second") is Put.STORED
    assert ceph_store.read("journal/0") == b"second"
    with pytest.raises(StoreMisconfigured, match=r"a second put of the same key was not refused.*without versioning"):
        probe(ceph_store)
    versions(ceph, ceph_store, "Suspended")
    probe(ceph_store)


def test_pages_and_deletions_of_more_than_a_thousand(ceph: Ceph, ceph_store: S3Store) -> None:
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
def test_wrong_credentials(
    ceph: Ceph, ceph_store: S3Store, wrong: dict[str, str], code: str, act: Callable[[S3Store], object]
) -> None:
    store = S3Store(ceph_store.bucket, "ckp", ceph.settings(**wrong))
    assert f": {code} (403). Check key id and secret" in refusal(act, store, StoreDenied)


@EACH
def test_a_wrong_clock(ceph_store: S3Store, act: Callable[[S3Store], object], monkeypatch: pytest.MonkeyPatch) -> None:
    now = botocore.auth.get_current_datetime  # type: ignore[attr-defined]

    def soon(**how: Any) -> datetime:
        later: datetime = now(**how) + timedelta(minutes=16)
        return later

    monkeypatch.setattr(botocore.auth, "get_current_datetime", soon)
    assert ": RequestTimeTooSkewed (403). Set the clock" in refusal(act, ceph_store, StoreDenied)


@EACH
def test_a_missing_bucket(ceph: Ceph, act: Callable[[S3Store], object]) -> None:
    said = refusal(act, S3Store("no-such-lake", "ckp", ceph.settings()), StoreMisconfigured)
    assert ": NoSuchBucket (404). Create the bucket" in said


def test_a_missing_right_is_named_and_never_taken_for_absent(ceph: Ceph, ceph_store: S3Store) -> None:
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


def test_the_life_of_a_jobs_checkpoints(ceph_store: S3Store) -> None:
    """Two attempts, no rows of Spark's: taken, retired, found again and verified by others, and one fences the other."""
    first = driver(ceph_store, retention=KeepLatest(2))
    for _ in range(3):
        take(first)
    assert expire(first) == (1,)
    second = driver(ceph_store, try_number=2, retention=KeepLatest(2))
    with pytest.raises(Fenced):
        take(first)
    take(second)
    other = bystander(ceph_store)
    newest = other.state.restore_point()
    assert newest
    assert newest.id == 4
    assert [verified(other, one)[1] for one in other.state.retained] == [2, 2, 2]
    assert expire(other) == (2,)
    assert list(ceph_store.folders(other.keys.prefix)) == ["chk-3", "chk-4", "journal", "state"]
