"""The journal on S3 with network faults: no entry is lost or doubled, and every writer gets a true answer. Runs anywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Heart, Liveness
from airflow_checkpoint_provider.errors import (
    CommitStateUnknown,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
    Superseded,
)
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import S3Store, s3
from tests.support.acknowledgements import acknowledgement, driver, stage
from tests.support.faults import virtual_time
from tests.support.histories import launch
from tests.support.journals import KEYS, SHORT, open_journal, write
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server

WRITERS, ENTRIES = 6, 12
MODEST = 0.05  # of all puts, for each harm

Answers = list[tuple[str, int | None]]  # of a writer: its run, and the number of the entry that holds it


@pytest.fixture
def impatient(hurt_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a store behind the proxy with a read timeout of one second instead of twenty."""
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(hurt_store.bucket, "ckp", replace(hurt_store.settings, region_name="impatient"))


def hurt_a_quarter(proxy: FaultProxy) -> None:
    """Plan every fault of a put, and a few of reads."""
    often: dict[str, Any] = {"times": 1_000, "chance": MODEST}
    proxy.hurt("PUT", "/journal/", Harm.SILENT_AFTER, times=2, chance=MODEST)
    proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.3, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_AFTER, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_BEFORE, status=409, code="ConditionalRequestConflict", **often)
    for harm in (Harm.RESET_BEFORE, Harm.RESET_AFTER, Harm.TWICE, Harm.FLIPPED_BEFORE):
        proxy.hurt("PUT", "/journal/", harm, **often)
    proxy.hurt("GET", "/journal/", Harm.RESET_AFTER, **often)
    proxy.hurt("GET", "/journal/", Harm.CUT, **often)


def go_on_writing(store: S3Store, writer: int) -> Answers:
    """Append launches. A void win is decided again; by then its launch exists and is replaced."""
    journal = open_journal(store, segment=SHORT * 4)
    answers: Answers = []
    for entry in range(ENTRIES):
        run = f"writer-{writer}-{entry}"
        try:
            answer = journal.append(launch(run))
            answers.append((run, None if answer.done else answer.n))
        except Superseded:
            answers.append((run, None))
    return answers


def in_the_journal(store: S3Store) -> list[str]:
    """Return the run that each entry launched, read from the bytes without faults."""
    runs = []
    for n, listed in enumerate(store.list(KEYS.entry(0).rpartition("/")[0])):
        assert listed.key == KEYS.entry(n)
        entry = json.loads(store.read(listed.key) or b"")
        runs += [event["spec"]["run"] for event in entry["events"] if event["kind"] == "launch_planned"]
    return runs


def test_six_writers_lose_no_entry_while_a_quarter_of_the_puts_fails(
    impatient: S3Store, s3_store: S3Store, proxy: FaultProxy
) -> None:
    hurt_a_quarter(proxy)
    with ThreadPoolExecutor(WRITERS) as threads:
        answers = [
            answer for writer in threads.map(partial(go_on_writing, impatient), range(WRITERS)) for answer in writer
        ]
    proxy.fetch_missing_state()
    proxy.land()
    runs = in_the_journal(s3_store)
    assert len(answers) == WRITERS * ENTRIES
    assert Counter(runs) == Counter(run for run, _ in answers), "an entry is lost or doubled"
    assert all(runs[n] == run for run, n in answers if n is not None), "an answer holds the number of another entry"
    puts = [request.harm for request in proxy.requests if request.method == "PUT"]
    hurt = Counter(harm for harm in puts if harm)
    assert len(hurt) >= 6
    assert hurt.total() > len(puts) / 8
    assert open_journal(s3_store, segment=SHORT * 4).catch_up().n == len(runs) - 1


@pytest.fixture
def journal(hurt_store: S3Store) -> Journal:
    """Return a journal behind the proxy with one entry."""
    journal = open_journal(hurt_store)
    write(journal)
    return journal


def test_append_that_lands_after_the_deadline_is_unknown_and_done_once(
    journal: Journal, s3_store: S3Store, proxy: FaultProxy
) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
    with virtual_time(), pytest.raises(CommitStateUnknown):
        journal.append(launch("late"))
    assert len(in_the_journal(s3_store)) == 1
    proxy.fetch_missing_state()
    proxy.land()
    again = journal.append(launch("late"))
    assert again.n == 1
    assert again.done is not None
    assert in_the_journal(s3_store)[1:] == ["late"]


def test_append_that_lands_before_the_deadline_is_done(journal: Journal, s3_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.05)
    assert journal.append(launch("late")).n == 1
    proxy.land()
    assert in_the_journal(s3_store)[1:] == ["late"]


def test_late_append_loses_to_an_entry_written_meanwhile(
    journal: Journal, s3_store: S3Store, proxy: FaultProxy
) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
    with virtual_time(), pytest.raises(CommitStateUnknown):
        journal.append(launch("late"))
    open_journal(s3_store).append(launch("other"))
    proxy.fetch_missing_state()
    proxy.land()
    assert journal.append(launch("late")).n == 2
    assert in_the_journal(s3_store)[1:] == ["other", "late"]


def test_append_at_a_taken_number_is_decided_again(journal: Journal, s3_store: S3Store, proxy: FaultProxy) -> None:
    open_journal(s3_store).append(launch("other"))
    assert journal.append(launch("ours")).n == 2
    puts = [request for request in proxy.requests if request.method == "PUT"][-2:]
    assert [request.path.rpartition("/")[2] for request in puts] == [KEYS.entry(n).rpartition("/")[2] for n in (1, 2)]


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
    proxy.fetch_missing_state()
    s3.keys["SESSION"].expires = 0
    with pytest.raises(StoreDenied, match="ExpiredToken"):
        journal.catch_up()
    s3.keys["SESSION"].expires = float("inf")
    proxy.land()
    again = journal.append(launch("unlucky"))
    assert again.n == 1
    assert again.done is not None
    assert in_the_journal(s3_store)[1:] == ["unlucky"]


def test_cut_entry_is_read_again_or_not_believed(journal: Journal, proxy: FaultProxy) -> None:
    write(journal, 3)
    proxy.hurt("GET", "/journal/", Harm.CUT, times=2)
    assert open_journal(journal.store).catch_up().n == 3
    proxy.hurt("GET", "/journal/", Harm.CUT, times=99, skip=2)
    reader = open_journal(journal.store)
    with pytest.raises(StoreUnavailable):
        reader.catch_up()
    assert reader.state.n == -1


def test_cut_answer_for_an_absent_entry_is_read_again(journal: Journal, proxy: FaultProxy) -> None:
    proxy.hurt("GET", KEYS.entry(1), Harm.CUT)
    assert open_journal(journal.store).catch_up().n == 0
    proxy.hurt("GET", KEYS.entry(1), Harm.CUT, times=99)
    with pytest.raises(StoreMisconfigured, match="404"):
        journal.catch_up()


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
