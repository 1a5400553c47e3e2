"""What the store in S3 keeps with each service, whatever the network does: puts, the journal, one winner of a race. Runs on Linux."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import CommitStateUnknown, StoreMisconfigured, StoreUnavailable, Superseded
from airflow_checkpoint_provider.storage import Put, S3Store, s3
from airflow_checkpoint_provider.storage.base import put
from tests.support.faults import virtual_time
from tests.support.histories import launch
from tests.support.journals import KEYS, SHORT, open_journal, write
from tests.support.s3faults import FaultProxy, Harm
from tests.unit.storage.forks import fork, running

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


class PutContract:
    """Puts with faults on the way: the outcome of one try and of ``put``."""

    @pytest.mark.parametrize(("harm", "how", "did_nothing", "there"), HARMS)
    def test_single_try_is_one_request_and_unknown_after_a_fault(
        self,
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
        self,
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
        self,
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

    def test_own_put_that_is_delivered_twice_is_stored(self, hurt_store: S3Store, proxy: FaultProxy) -> None:
        """A proxy delivers the request twice: the answer is 412 without a retry."""
        proxy.hurt("PUT", r"/journal/", Harm.TWICE, times=2)
        assert hurt_store.create(KEY, OURS) is Put.EXISTS
        assert put(hurt_store, "journal/8.json", OURS) == (Put.STORED, OURS)

    def test_put_that_lands_after_the_deadline_is_unknown(
        self, hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.hurt("PUT", r"/journal/", Harm.LATE, times=100)
        assert put(hurt_store, KEY, OURS, patience=3) == (Put.UNKNOWN, None)
        assert s3_store.read(KEY) is None
        proxy.land()
        assert s3_store.read(KEY) == OURS

    def test_late_put_after_a_foreign_put_changes_nothing(
        self, hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.hurt("PUT", r"/journal/", Harm.LATE)
        assert hurt_store.create(KEY, OURS) is Put.UNKNOWN
        assert s3_store.create(KEY, THEIRS) is Put.STORED
        proxy.land()
        assert put(hurt_store, KEY, OURS) == (Put.EXISTS, THEIRS)

    def test_answer_without_an_etag_is_unknown(self, hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy) -> None:
        proxy.hurt("PUT", r"/journal/", Harm.WITHOUT_ETAG)
        with pytest.raises(CommitStateUnknown, match=r"has no ETag.*Check endpoint_url"):
            put(hurt_store, KEY, OURS)
        assert s3_store.read(KEY) == OURS

    def test_body_changed_on_the_way_is_refused_and_sent_again(
        self, hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proxy.hurt("PUT", r"/journal/", Harm.FLIPPED_BEFORE)
        with pytest.raises(StoreUnavailable, match="XAmzContentSHA256Mismatch"):
            hurt_store.create(KEY, OURS)
        assert s3_store.read(KEY) is None
        proxy.hurt("PUT", r"/journal/", Harm.FLIPPED_BEFORE)
        assert put(hurt_store, KEY, OURS) == (Put.STORED, OURS)
        assert s3_store.read(KEY) == OURS


# -- the journal ---------------------------------------------------------------------------------------------------------


WRITERS = 6
MODEST = 0.05  # of all puts, for each harm

Answers = list[tuple[str, int | None]]  # of a writer: its run, and the number of the entry that holds it


def hurt_a_quarter(proxy: FaultProxy) -> None:
    """Plan every fault of a put, and a few of reads."""
    often: dict[str, Any] = {"times": 1_000, "chance": MODEST}
    proxy.hurt("PUT", "/journal/", Harm.SILENT_AFTER, times=2, chance=MODEST)
    proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.3, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_AFTER, **often)
    proxy.hurt("PUT", "/journal/", Harm.ERROR_BEFORE, status=409, code="ConditionalRequestConflict", **often)
    for harm in (Harm.RESET_BEFORE, Harm.RESET_AFTER, Harm.TWICE, Harm.FLIPPED_BEFORE):
        proxy.hurt("PUT", "/journal/", harm, **often)
    for harm in (Harm.RESET_AFTER, Harm.CUT):
        proxy.hurt("GET", "/journal/", harm, times=s3.READ_TRIES - 1, chance=MODEST)  # a read survives these


def go_on_writing(store: S3Store, entries: int, writer: int) -> Answers:
    """Append launches. A void win is decided again; by then its launch exists and is replaced."""
    journal = open_journal(store, segment=SHORT * 4)
    answers: Answers = []
    for entry in range(entries):
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


class JournalContract:
    """No entry is lost or doubled, and every writer gets a true answer."""

    entries = 12
    """Of each writer."""

    @pytest.fixture
    def impatient(self, hurt_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
        """Return a store behind the proxy with a read timeout of one second instead of twenty."""
        monkeypatch.setattr(s3, "READ_TIMEOUT", 1.0)
        return S3Store(hurt_store.bucket, "ckp", replace(hurt_store.settings, region_name="impatient"))

    @pytest.fixture
    def journal(self, hurt_store: S3Store) -> Journal:
        """Return a journal behind the proxy with one entry."""
        journal = open_journal(hurt_store)
        write(journal)
        return journal

    def test_six_writers_lose_no_entry_while_a_quarter_of_the_puts_fails(
        self, impatient: S3Store, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        hurt_a_quarter(proxy)
        with ThreadPoolExecutor(WRITERS) as threads:
            answers = [
                answer
                for writer in threads.map(partial(go_on_writing, impatient, self.entries), range(WRITERS))
                for answer in writer
            ]
        proxy.heal()
        proxy.land()
        runs = in_the_journal(s3_store)
        assert len(answers) == WRITERS * self.entries
        assert Counter(runs) == Counter(run for run, _ in answers), "an entry is lost or doubled"
        assert all(runs[n] == run for run, n in answers if n is not None), "an answer holds the number of another entry"
        puts = [request.harm for request in proxy.requests if request.method == "PUT"]
        hurt = Counter(harm for harm in puts if harm)
        assert len(hurt) >= self.entries / 2, "kinds of harm"
        assert hurt.total() > len(puts) / 8
        assert open_journal(s3_store, segment=SHORT * 4).catch_up().n == len(runs) - 1

    def test_append_that_lands_after_the_deadline_is_unknown_and_done_once(
        self, journal: Journal, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
        with virtual_time(), pytest.raises(CommitStateUnknown):
            journal.append(launch("late"))
        assert len(in_the_journal(s3_store)) == 1
        proxy.heal()
        proxy.land()
        again = journal.append(launch("late"))
        assert again.n == 1
        assert again.done is not None
        assert in_the_journal(s3_store)[1:] == ["late"]

    def test_append_that_lands_before_the_deadline_is_done(
        self, journal: Journal, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.hurt("PUT", "/journal/", Harm.LATE, seconds=0.05)
        assert journal.append(launch("late")).n == 1
        proxy.land()
        assert in_the_journal(s3_store)[1:] == ["late"]

    def test_late_append_loses_to_an_entry_written_meanwhile(
        self, journal: Journal, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        proxy.hurt("PUT", "/journal/", Harm.LATE, times=99)
        with virtual_time(), pytest.raises(CommitStateUnknown):
            journal.append(launch("late"))
        open_journal(s3_store).append(launch("other"))
        proxy.heal()
        proxy.land()
        assert journal.append(launch("late")).n == 2
        assert in_the_journal(s3_store)[1:] == ["other", "late"]

    def test_append_at_a_taken_number_is_decided_again(
        self, journal: Journal, s3_store: S3Store, proxy: FaultProxy
    ) -> None:
        open_journal(s3_store).append(launch("other"))
        assert journal.append(launch("ours")).n == 2
        puts = [request for request in proxy.requests if request.method == "PUT"][-2:]
        assert [request.path.rpartition("/")[2] for request in puts] == [
            KEYS.entry(n).rpartition("/")[2] for n in (1, 2)
        ]

    def test_cut_entry_is_read_again_or_not_believed(self, journal: Journal, proxy: FaultProxy) -> None:
        write(journal, 3)
        proxy.hurt("GET", "/journal/", Harm.CUT, times=2)
        assert open_journal(journal.store).catch_up().n == 3
        proxy.hurt("GET", "/journal/", Harm.CUT, times=99, skip=2)
        reader = open_journal(journal.store)
        with pytest.raises(StoreUnavailable):
            reader.catch_up()
        assert reader.state.n == -1

    def test_cut_answer_for_an_absent_entry_is_read_again(self, journal: Journal, proxy: FaultProxy) -> None:
        proxy.hurt("GET", KEYS.entry(1), Harm.CUT)
        assert open_journal(journal.store).catch_up().n == 0
        proxy.hurt("GET", KEYS.entry(1), Harm.CUT, times=99)
        with pytest.raises(StoreMisconfigured, match="404"):
            journal.catch_up()


# -- a race --------------------------------------------------------------------------------------------------------------


RACERS = 32


def race(store: S3Store, barrier: Barrier, results: Queue[Any], rounds: int, writer: int) -> None:
    won, read = [], []
    for n in range(rounds):
        barrier.wait(120)
        won.append(store.create(f"journal/{n}", f"{writer}".encode()) is Put.STORED)
        read.append(int(store.read(f"journal/{n}") or b"-1"))
    results.put((writer, won, read))


class RaceContract:
    """32 processes at one key: each key has one winner, and all read what it wrote."""

    rounds = 6

    def test_one_of_32_processes_wins_and_all_read_its_bytes(self, s3_store: S3Store) -> None:
        s3_store.read("absent")  # the server has served, and boto3 is there, before anyone forks
        barrier, results = fork.Barrier(RACERS), fork.Queue()
        with running(*(partial(race, s3_store, barrier, results, self.rounds, writer) for writer in range(RACERS))):
            answers = [results.get(timeout=240) for _ in range(RACERS)]
        for n in range(self.rounds):
            winners = [writer for writer, won, _ in answers if won[n]]
            assert winners == [int(s3_store.read(f"journal/{n}") or b"-1")]
            assert {read[n] for _, _, read in answers} == set(winners)
