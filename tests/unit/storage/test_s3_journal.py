"""The journal on S3 while the network hurts it: nothing lost, nothing doubled, no writer misinformed. Runs anywhere."""

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

Said = list[tuple[str, int | None]]  # what a writer was told: its run, and the number of the entry that holds it


@pytest.fixture
def impatient(hurt_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Behind the proxy; waits a second, and not twenty, where an answer never comes."""
    monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
    return S3Store(hurt_store.bucket, "ckp", replace(hurt_store.settings, region_name="impatient"))


def hurt_a_quarter(proxy: FaultProxy) -> None:
    """Every line of what can happen to a put, and a few reads."""
    often: dict[str, Any] = {"times": 1_000, "chance": MODEST}
    proxy.hurt("PUT", "/journal/", Harm.SILENT_AFTER, times=2, chance=MODEST)
    proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.3, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_AFTER, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_BEFORE, status=409, code="ConditionalRequestConflict", **often)
    for harm in (Harm.RESET_BEFORE, Harm.RESET_AFTER, Harm.TWICE, Harm.FLIPPED_BEFORE):
        proxy.hurt("PUT", "/journal/", harm, **often)
    proxy.hurt("GET", "/journal/", Harm.RESET_AFTER, **often)
    proxy.hurt("GET", "/journal/", Harm.CUT, **often)


def go_on_writing(store: S3Store, writer: int) -> Said:
    """A win that is void, because others have closed the segment meanwhile, is decided again: it stands, and is replaced."""
    journal = open_journal(store, segment=SHORT * 4)
    said: Said = []
    for entry in range(ENTRIES):
        run = f"writer-{writer}-{entry}"
        try:
            answer = journal.append(launch(run))
            said.append((run, None if answer.done else answer.n))
        except Superseded:
            said.append((run, None))
    return said


def in_the_journal(store: S3Store) -> list[str]:
    """Which run each entry launched, read from the bytes, past all hurt."""
    runs = []
    for n, listed in enumerate(store.list(KEYS.entry(0).rpartition("/")[0])):
        assert listed.key == KEYS.entry(n)
        entry = json.loads(store.read(listed.key) or b"")
        runs += [event["spec"]["run"] for event in entry["events"] if event["kind"] == "launch_planned"]
    return runs


def test_six_writers_while_a_quarter_of_the_puts_is_hurt(
    impatient: S3Store, s3_store: S3Store, proxy: FaultProxy
) -> None:
    hurt_a_quarter(proxy)
    with ThreadPoolExecutor(WRITERS) as threads:
        told = [one for said in threads.map(partial(go_on_writing, impatient), range(WRITERS)) for one in said]
    proxy.heal()
    proxy.land()
    runs = in_the_journal(s3_store)
    assert len(told) == WRITERS * ENTRIES
    assert Counter(runs) == Counter(run for run, _ in told), "lost, or doubled"
    assert all(runs[n] == run for run, n in told if n is not None), "told a number that is another's"
    puts = [request.harm for request in proxy.requests if request.method == "PUT"]
    hurt = Counter(harm for harm in puts if harm)
    assert len(hurt) >= 6
    assert hurt.total() > len(puts) / 8
    assert open_journal(s3_store, segment=SHORT * 4).catch_up().n == len(runs) - 1


@pytest.fixture
def journal(hurt_store: S3Store) -> Journal:
    """Behind the proxy, with an entry, caught up."""
    journal = open_journal(hurt_store)
    write(journal)
    return journal


def test_what_lands_after_the_deadline_was_told_as_unknown_and_is_not_done_twice(
    journal: Journal, s3_store: S3Store, proxy: FaultProxy
) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
    with virtual_time(), pytest.raises(CommitStateUnknown):
        journal.append(launch("late"))
    assert len(in_the_journal(s3_store)) == 1
    proxy.heal()
    proxy.land()
    again = journal.append(launch("late"))
    assert (again.n, again.done is None) == (1, False)
    assert in_the_journal(s3_store)[1:] == ["late"]


def test_what_lands_before_the_deadline_is_done(journal: Journal, s3_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.05)
    assert journal.append(launch("late")).n == 1
    proxy.land()
    assert in_the_journal(s3_store)[1:] == ["late"]


def test_what_lands_late_loses_to_who_wrote_meanwhile(journal: Journal, s3_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
    with virtual_time(), pytest.raises(CommitStateUnknown):
        journal.append(launch("late"))
    open_journal(s3_store).append(launch("other"))
    proxy.heal()
    proxy.land()
    assert journal.append(launch("late")).n == 2
    assert in_the_journal(s3_store)[1:] == ["other", "late"]


def test_exists_that_is_really_anothers_is_lost_and_decided_again(
    journal: Journal, s3_store: S3Store, proxy: FaultProxy
) -> None:
    open_journal(s3_store).append(launch("other"))
    assert journal.append(launch("ours")).n == 2
    puts = [request for request in proxy.requests if request.method == "PUT"][-2:]
    assert [request.path.rpartition("/")[2] for request in puts] == [KEYS.entry(n).rpartition("/")[2] for n in (1, 2)]


@pytest.mark.parametrize("act", [Journal.poll, Journal.catch_up])
def test_denied_at_the_tail_is_not_the_tail(s3: S3Server, s3_store: S3Store, act: Callable[[Journal], object]) -> None:
    """Without the right to list, S3 says of the absent next entry that it is denied."""
    write(open_journal(s3_store), 3)
    s3.keys["BLIND"] = Key("s", lists=False)
    blind = open_journal(S3Store(s3_store.bucket, "ckp", s3.settings("BLIND")))
    with pytest.raises(StoreDenied, match="s3:ListBucket"):
        act(blind)
    assert blind.state.n == -1


@pytest.mark.parametrize("harm", [Harm.RESET_AFTER, Harm.LATE])
def test_a_token_that_expires_between_two_tries_is_unknown_to_the_writer(
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
    assert (again.n, again.done is None) == (1, False)
    assert in_the_journal(s3_store)[1:] == ["unlucky"]


def test_an_entry_that_arrives_cut_is_read_again_or_not_believed(journal: Journal, proxy: FaultProxy) -> None:
    write(journal, 3)
    proxy.hurt("GET", "/journal/", Harm.CUT, times=2)
    assert open_journal(journal.store).catch_up().n == 3
    proxy.hurt("GET", "/journal/", Harm.CUT, times=99, skip=2)
    reader = open_journal(journal.store)
    with pytest.raises(StoreUnavailable):
        reader.catch_up()
    assert reader.state.n == -1


def test_an_answer_that_the_tail_is_absent_is_read_again_where_it_arrives_cut(
    journal: Journal, proxy: FaultProxy
) -> None:
    proxy.hurt("GET", KEYS.entry(1), Harm.CUT)
    assert open_journal(journal.store).catch_up().n == 0
    proxy.hurt("GET", KEYS.entry(1), Harm.CUT, times=99)
    with pytest.raises(StoreMisconfigured, match="404"):
        journal.catch_up()


def test_requests_are_those_that_the_protocol_needs(s3: S3Server, s3_store: S3Store) -> None:
    """Counted by the service: nothing is looked at twice, and no request is hidden in the client."""
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


def test_a_missing_bucket_is_no_empty_history(s3: S3Server) -> None:
    with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
        open_journal(S3Store("no-such-lake", "ckp", s3.settings())).catch_up()
