"""What the pages ask a store: once for all viewers, each connection in threads of its own, and never for long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, StoreUnavailable
from airflow_checkpoint_provider.storage import MemoryStore, Store
from airflow_checkpoint_provider.ui import polling
from airflow_checkpoint_provider.ui.polling import HistoryReading, Polls
from airflow_checkpoint_provider.ui.threads import USER
from tests.support.beats import put_beat
from tests.support.faults import FaultyStore, served
from tests.support.recorded import Recorded, second_attempt, three_stages

ALWAYS, NEVER = 0.0, 1e9  # seconds for which an answer is good


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(), served)


@pytest.fixture
def running(store: FaultyStore) -> Recorded:
    recorded = Recorded(store)
    three_stages(recorded)
    store.requests.clear()
    return recorded


@pytest.fixture
def finished(running: Recorded, store: FaultyStore) -> Recorded:
    second_attempt(running)
    store.requests.clear()
    return running


def opened(store: Store, every: float = ALWAYS, limit: float = 60) -> Polls:
    return Polls(lambda _: store, every=every, limit=limit)


def run(question: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(question, 120))


def test_many_viewers_cost_one_poll(finished: Recorded, store: FaultyStore) -> None:
    async def look() -> list[HistoryReading]:
        polls = opened(store, every=NEVER)
        return await asyncio.gather(*(polls.history("c", finished.keys.prefix) for _ in range(50)))

    readings = run(look())
    assert len({id(reading) for reading in readings}) == 1
    first = store.requests.total()
    store.requests.clear()
    run(opened(store, every=NEVER).history("c", finished.keys.prefix))
    assert store.requests.total() == first


def test_poll_of_a_finished_history_costs_one_request(finished: Recorded, store: FaultyStore) -> None:
    async def look() -> None:
        polls = opened(store)
        await polls.history("c", finished.keys.prefix)
        store.requests.clear()
        await polls.history("c", finished.keys.prefix)

    run(look())
    assert store.requests == {"read": 1}


def test_poll_of_a_running_job_costs_its_heartbeat_and_its_pending_checkpoint_too(
    running: Recorded, store: FaultyStore
) -> None:
    async def look() -> HistoryReading:
        polls = opened(store)
        await polls.history("c", running.keys.prefix)
        store.requests.clear()
        return await polls.history("c", running.keys.prefix)

    reading = run(look())
    assert reading.missing == {4: ("",)}
    assert store.requests == {"read": 3}


def test_driver_of_a_deferred_task_that_nobody_follows_is_found(running: Recorded, store: FaultyStore) -> None:
    launch = running.state.launches[-1].number
    deferred_at = "2026-11-20T02:14:00.000Z"
    put_beat(store, running.keys.launch_beat(launch), off=timedelta(minutes=-5), deferred_at=deferred_at)
    assert "[CKP115]" in run(opened(store).history("c", running.keys.prefix)).not_followed
    put_beat(store, running.keys.launch_beat(launch), deferred_at=deferred_at)
    assert run(opened(store).history("c", running.keys.prefix)).not_followed == ""


def test_answer_is_good_for_a_while(finished: Recorded, store: FaultyStore) -> None:
    async def look() -> None:
        polls = opened(store, every=NEVER)
        await polls.history("c", finished.keys.prefix)
        store.requests.clear()
        await polls.history("c", finished.keys.prefix)

    run(look())
    assert store.requests == {}


@pytest.mark.parametrize(("ended", "requests"), [(True, 0), (False, 3)])
def test_history_of_a_list_is_read_seldom_if_nobody_is_at_work(
    running: Recorded, store: FaultyStore, ended: bool, requests: int
) -> None:
    if ended:
        running.ended("02:56:00", "failed", 1)

    async def look() -> None:
        polls = opened(store)
        await polls.listed("c", running.keys.prefix)
        store.requests.clear()
        await polls.listed("c", running.keys.prefix)

    run(look())
    assert store.requests.total() == requests


def test_next_poll_reads_what_is_new(running: Recorded, store: FaultyStore) -> None:
    async def look() -> tuple[int, int]:
        polls = opened(store)
        before = await polls.history("c", running.keys.prefix)
        running.aborted(4, "02:55:00", "expired")
        after = await polls.history("c", running.keys.prefix)
        return before.found.state.n, after.found.state.n

    before, after = run(look())
    assert after == before + 1


class Hanging(MemoryStore):
    """It answers when the test says so."""

    def __init__(self) -> None:
        super().__init__("hanging")
        self.answers, self.asked = threading.Event(), 0

    def read(self, key: str) -> bytes | None:
        self.asked += 1
        assert self.answers.wait(60)
        return super().read(key)

    def folders(self, prefix: str) -> Iterator[str]:
        self.asked += 1
        assert self.answers.wait(60)
        return super().folders(prefix)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    store = Hanging()
    yield store
    store.answers.set()  # its threads end


def test_store_that_hangs_is_reported_and_holds_no_other_connection(
    hanging: Hanging, finished: Recorded, store: FaultyStore
) -> None:
    async def look() -> HistoryReading:
        stores: dict[str, Store] = {"hangs": hanging, "works": store}
        polls = Polls(stores.__getitem__, every=ALWAYS, limit=0.05)
        for number in range(20):
            with pytest.raises(StoreUnavailable, match="has not answered"):
                await polls.history("hangs", f"jobs/job-{number}/job")
        assert hanging.asked <= polling.THREADS
        polls.limit = 60
        reading = await polls.history("works", finished.keys.prefix)
        hanging.answers.set()
        return reading

    assert run(look()).found.state.job == finished.job


def test_question_that_is_too_old_is_not_waited_for_again(hanging: Hanging) -> None:
    async def look() -> float:
        polls = Polls(lambda _: hanging, every=ALWAYS, limit=0.5)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await polls.history("c", "jobs/a/job")
        assert hanging.asked == 1
        hanging.answers.set()
        return time.monotonic() - began

    assert run(look()) < 0.4


def test_late_answer_serves_a_later_page(hanging: Hanging) -> None:
    async def look() -> None:
        polls = Polls(lambda _: hanging, every=NEVER, limit=0.05)
        with pytest.raises(StoreUnavailable):
            await polls.jobs("c")
        polls.limit = 60
        hanging.answers.set()
        assert await polls.jobs("c") == []
        assert hanging.asked == 1

    run(look())


def test_broken_history_is_an_error_and_is_read_again(running: Recorded, store: FaultyStore) -> None:
    key = running.keys.entry(1)
    body = store.read(key) or b""

    async def look() -> HistoryReading:
        polls = opened(store)
        store.overwrite(key, body[:-9])
        with pytest.raises(Damaged):
            await polls.history("c", running.keys.prefix)
        store.overwrite(key, body)
        reading: HistoryReading = await polls.history("c", running.keys.prefix)
        return reading

    assert run(look()).found.state.job == running.job


def test_changed_connection_leads_to_its_new_store(running: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "SELDOM", ALWAYS)
    stores = iter((running.store, MemoryStore("new")))

    async def look() -> None:
        polls = Polls(lambda _: next(stores), every=ALWAYS)
        await polls.history("c", running.keys.prefix)
        with pytest.raises(CheckpointNotFound):
            await polls.history("c", running.keys.prefix)

    run(look())


def test_late_answer_of_the_old_store_leaves_no_reader_behind(
    hanging: Hanging, running: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection changes while the old store hangs. When it answers at last, it must not be asked again."""
    monkeypatch.setattr(polling, "SELDOM", ALWAYS)
    old = Recorded(hanging)
    hanging.answers.set()
    three_stages(old)
    hanging.answers.clear()
    hanging.asked = 0
    second_attempt(running)
    stores: list[Store] = [hanging]

    async def look() -> str:
        polls = Polls(lambda _: stores[-1], every=ALWAYS, limit=60)
        late = asyncio.create_task(polls.history("c", old.keys.prefix))
        while not hanging.asked:
            await asyncio.sleep(0.01)
        stores.append(running.store)
        await polls.jobs("c")  # looks the connection up again
        hanging.answers.set()
        await late
        reading: HistoryReading = await polls.history("c", running.keys.prefix)
        return reading.root

    assert run(look()) == running.store.uri


def test_slow_lookup_does_not_bring_the_old_store_back(running: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads look the connection up; the first one gets the old address, and its answer comes last."""
    slow, looked, lookups = threading.Event(), threading.Event(), iter(range(2))
    old = MemoryStore("old")

    def open_store(_: str) -> Store:
        if next(lookups) == 0:
            looked.set()
            assert slow.wait(60)
            return old
        return running.store

    polls = Polls(open_store, every=ALWAYS)
    first = threading.Thread(target=polls._store, args=("c",))
    first.start()
    assert looked.wait(60)
    assert polls._store("c") is running.store
    slow.set()
    first.join(60)
    assert polls._store("c") is running.store


def test_old_answers_are_kept_no_longer(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "FORGOTTEN", ALWAYS)

    async def look() -> int:
        polls = opened(store, every=NEVER)
        for number in range(20):
            with pytest.raises(CheckpointNotFound):
                await polls.history("c", f"jobs/job-{number}/job")
        return len(polls._answers)

    assert run(look()) == 1


def test_only_some_answers_are_kept(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "KEPT", 5)

    async def look() -> int:
        polls = opened(store, every=NEVER)
        for number in range(20):
            with pytest.raises(CheckpointNotFound):
                await polls.history("c", f"jobs/job-{number}/job")
        return len(polls._answers)

    assert run(look()) <= 6


def test_connection_that_cannot_be_opened_is_opened_anew_by_the_next_question(finished: Recorded) -> None:
    refusals = iter([StoreUnavailable("not now"), None])

    def open_store(_: str) -> Store:
        if refusal := next(refusals):
            raise refusal
        return finished.store

    async def look() -> None:
        polls = Polls(open_store, every=NEVER, limit=60)
        with pytest.raises(StoreUnavailable, match="not now"):
            await polls.runs("c", "job")
        assert await polls.runs("c", "another") == []

    run(look())


def test_user_who_asks_for_much_has_few_questions_under_way(hanging: Hanging) -> None:
    """The others wait for their turn, and are never asked if that does not come."""

    async def look() -> None:
        polls = Polls(lambda _: hanging, every=ALWAYS, limit=0.2)
        asked = [polls.runs("c", f"made-up-{number}") for number in range(3200)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert len(polls._answers) == polling.UNDER_WAY
        polls.limit = 60
        hanging.answers.set()
        assert await polls.jobs("c") == []
        await asyncio.gather(*(answer.task for answer in polls._answers.values()))
        assert hanging.asked == polling.UNDER_WAY + 1

    run(look())


def test_question_that_another_user_has_asked_takes_no_turn(hanging: Hanging) -> None:
    async def look() -> None:
        polls = Polls(lambda _: hanging, every=NEVER, limit=60)
        USER.set("one")
        theirs = [asyncio.create_task(polls.runs("c", f"job-{number}")) for number in range(polling.UNDER_WAY)]
        await asyncio.sleep(0)
        USER.set("two")
        ours = [asyncio.create_task(polls.runs("c", f"job-{number}")) for number in range(polling.UNDER_WAY)]
        await asyncio.sleep(0)
        own = [asyncio.create_task(polls.runs("c", f"own-{number}")) for number in range(polling.UNDER_WAY)]
        while len(polls._answers) < 2 * polling.UNDER_WAY:
            await asyncio.sleep(0.01)
        hanging.answers.set()
        await asyncio.gather(*theirs, *ours, *own, return_exceptions=True)
        assert hanging.asked == 2 * polling.UNDER_WAY

    run(look())


def test_nothing_stays_of_users_who_ask_no_more(store: FaultyStore) -> None:
    async def look() -> int:
        polls = opened(store)
        for number in range(20):
            USER.set(f"user {number}")
            assert await polls.jobs("c") == []
        await asyncio.sleep(0)  # the last question ends
        return len(polls._turns._lanes)

    assert run(look()) == 0
