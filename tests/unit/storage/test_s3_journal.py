"""The journal on S3 with network faults: no entry is lost or doubled, and every writer gets a true answer. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Liveness
from airflow_checkpoint_provider.errors import CommitStateUnknown, StoreDenied, StoreMisconfigured
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import S3Store, s3
from tests.support.acknowledgements import acknowledgement, driver, stage
from tests.support.faults import virtual_time
from tests.support.histories import launch
from tests.support.journals import KEYS, open_journal, write
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server
from tests.unit.storage.s3_contract import JournalContract, in_the_journal


class TestJournal(JournalContract):
    """With the server of the tests. Ceph has more entries, in the slow suite."""

    entries = 8


@pytest.mark.parametrize("act", [Journal.poll, Journal.catch_up])
def test_denied_read_of_the_next_entry_is_not_taken_for_absent(
    s3: S3Server, s3_store: S3Store, act: Callable[[Journal], object]
) -> None:
    """Without the right to list, S3 answers *denied* for the absent next entry."""
    write(open_journal(s3_store), 3)
    s3.keys["BLIND"] = Key("s", lists=False)
    blind = open_journal(S3Store(s3_store.bucket, "ckp", s3.settings("BLIND")))
    with pytest.raises(StoreDenied, match="s3:ListBucket"):
        act(blind)
    assert blind.state.n == -1


@pytest.mark.parametrize("harm", [Harm.RESET_AFTER, Harm.LATE])
def test_append_is_unknown_if_the_token_expires_between_tries(
    s3: S3Server, bucket: str, proxy: FaultProxy, s3_store: S3Store, harm: Harm
) -> None:
    s3.keys["SESSION"] = Key("s", token="t")
    journal = open_journal(S3Store(bucket, "ckp", s3.settings("SESSION", endpoint_url=proxy.url)))
    write(journal)
    expire: dict[str, Any] = {"times": 99, "status": 400, "code": "ExpiredToken"}
    proxy.hurt("PUT", "/journal/", harm)
    for method in ("PUT", "GET"):
        proxy.hurt(method, "/journal/", Harm.ERROR_BEFORE, **expire)
    with virtual_time(), pytest.raises(CommitStateUnknown):
        journal.append(launch("unlucky"))
    proxy.heal()
    s3.keys["SESSION"].expires = 0
    with pytest.raises(StoreDenied, match="ExpiredToken"):
        journal.catch_up()
    s3.keys["SESSION"].expires = float("inf")
    proxy.land()
    again = journal.append(launch("unlucky"))
    assert again.n == 1
    assert again.done is not None
    assert in_the_journal(s3_store)[1:] == ["unlucky"]


def test_checkpoint_on_s3_costs_the_requests_of_the_protocol(s3: S3Server, s3_store: S3Store) -> None:
    """The service counts the requests, so none is hidden in the client."""
    coordinator = driver(s3_store)
    s3.requests.clear()
    coordinator.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    coordinator.complete(1)
    assert s3.requests == {"PUT": 4, "GET": 3}
    s3.requests.clear()
    for _ in range(20):
        coordinator.journal.poll()
    assert s3.requests == {"GET": 20}


def test_missing_bucket_is_no_empty_history(s3: S3Server) -> None:
    with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
        open_journal(S3Store("no-such-lake", "ckp", s3.settings())).catch_up()


# -- heartbeats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (301, b"<Error><Code>PermanentRedirect</Code><Message/></Error>"),
        (400, b"<Error><Code>BadRequest</Code><Message/></Error>"),
        (400, b"<html><p>proxy"),
        (404, b"<html>not here</html>"),
    ],
)
def test_odd_answer_is_no_silence_of_a_driver(hurt_store: S3Store, proxy: FaultProxy, status: int, body: bytes) -> None:
    """A task would start another driver beside the living one."""
    key, observer = KEYS.driver_beat(1), Liveness(hurt_store)
    Heart(hurt_store, key, Beat()).pulse()
    observer.observe([key])
    assert observer.alive([key])
    proxy.hurt("GET", "", Harm.ANSWERED, times=s3.READ_TRIES, status=status, body=body)
    with pytest.raises(StoreMisconfigured):
        observer.observe([key])
    assert observer.alive([key])
