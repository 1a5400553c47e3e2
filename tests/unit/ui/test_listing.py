"""The list of jobs: which rows a viewer gets, beside histories and connections that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.errors import StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.storage import MemoryStore, Store
from airflow_checkpoint_provider.ui import listing
from airflow_checkpoint_provider.ui.access import Viewer
from airflow_checkpoint_provider.ui.polling import HistoryReading, Polls
from airflow_checkpoint_provider.ui.views.job import job_page
from airflow_checkpoint_provider.ui.views.jobs import JobRow, JobsPage, Storage, job_row
from tests.support.faults import FaultyStore, served
from tests.support.recorded import RUN, Recorded, at, finished_and_running, second_attempt, three_stages
from tests.support.viewers import CONNECTION, Reads

FLIGHTS, ORDERS, BROKEN = "flights_etl.delays", "orders.totals", "flights_etl.broken"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("lake")


@pytest.fixture
def readable(store: MemoryStore) -> Recorded:
    flights = Recorded(store, FLIGHTS)
    three_stages(flights)
    Recorded(store, ORDERS, scope="").started("22:00:20", run="one")
    return flights


@pytest.fixture
def broken(store: MemoryStore, readable: Recorded) -> Recorded:
    recorded = Recorded(store, BROKEN)
    recorded.started("22:00:20")
    hurt(recorded)
    return recorded


def hurt(recorded: Recorded) -> None:
    key = recorded.keys.entry(1)
    recorded.store.overwrite(key, (recorded.store.read(key) or b"")[:-9])


def listed(store: Store, viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> JobsPage:
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", CONNECTION)
    return asyncio.run(listing.jobs_page(Polls(lambda _: store, every=0.0, limit=60), viewer))


def only(page: JobsPage) -> Storage:
    (storage,) = page.storages
    return storage


def test_broken_history_is_a_row_beside_the_readable_ones(
    store: MemoryStore, broken: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = only(listed(store, Reads("flights_etl", "orders", admin=True), monkeypatch))
    assert [row.job for row in storage.rows] == [FLIGHTS, ORDERS]
    assert [(row.job, row.code) for row in storage.broken] == [(BROKEN, "CKP621")]


def test_broken_history_is_hidden_from_others(
    store: MemoryStore, broken: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = only(listed(store, Reads("flights_etl"), monkeypatch))
    assert ([row.job for row in storage.rows], storage.broken) == ([FLIGHTS], ())


def test_older_run_is_shown_beside_a_newest_one_that_is_broken(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurt(finished_and_running(store, 30))
    storage = only(listed(store, Reads("flights_etl", admin=True), monkeypatch))
    assert [(row.job, row.run) for row in storage.rows] == [(FLIGHTS, RUN)]
    assert [row.job for row in storage.broken] == [FLIGHTS]


def test_row_that_fails_hides_no_other(store: MemoryStore, readable: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_for_orders(connection: str, reading: HistoryReading, now: str) -> JobRow:
        if reading.found.state.job == ORDERS:
            raise ZeroDivisionError
        return job_row(connection, reading, now)

    monkeypatch.setattr(listing, "job_row", fails_for_orders)
    storage = only(listed(store, Reads("flights_etl", "orders", admin=True), monkeypatch))
    assert [row.job for row in storage.rows] == [FLIGHTS]
    assert [(row.job, row.code) for row in storage.broken] == [(ORDERS, "CKP900")]


class Denied(MemoryStore):
    def folders(self, prefix: str) -> Iterator[str]:
        raise StoreDenied(f"connection {CONNECTION!r} may not list {prefix}")


def test_connection_with_a_problem_is_named_to_its_admin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = only(listed(Denied("denied"), Reads(admin=True), monkeypatch))
    other = only(listed(Denied("denied"), Reads("flights_etl"), monkeypatch))
    assert admin.connection == CONNECTION
    assert f"Connection {CONNECTION!r}" in admin.problem
    assert other.connection == ""
    assert CONNECTION not in other.problem.replace("[CKP611]", "").split()
    assert "[CKP611]" in other.problem


def test_user_who_sees_nothing_learns_of_no_connection(
    store: MemoryStore, readable: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(store, Reads("another"), monkeypatch).storages == []


def test_jobs_that_are_too_many_are_counted_for_the_admin_only(
    store: MemoryStore, readable: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "JOBS", 1)
    admin = only(listed(store, Reads("flights_etl", "orders", admin=True), monkeypatch))
    assert (len(admin.rows), admin.left_out) == (1, "1 more job")
    other = only(listed(store, Reads("flights_etl", "orders"), monkeypatch))
    assert (other.connection, len(other.rows), other.left_out) == (CONNECTION, 1, "more jobs")


def test_user_whose_job_is_not_looked_at_is_told_so_without_the_connection(
    store: MemoryStore, readable: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "JOBS", 1)  # the job of orders comes later
    page = listed(store, Reads("orders"), monkeypatch)
    storage = only(page)
    assert (storage.connection, storage.rows, storage.left_out, page.moves) == ("", [], "more jobs", False)


class Silent(MemoryStore):
    """Names jobs, but not their runs: it does not answer in time."""

    def folders(self, prefix: str) -> Iterator[str]:
        if prefix.endswith("/runs"):
            raise StoreUnavailable("no answer for 3 s")
        return super().folders(prefix)


@pytest.mark.parametrize(
    ("admin", "connection", "broken", "unread"), [(True, CONNECTION, [FLIGHTS], ""), (False, "", [], "more jobs")]
)
def test_page_looks_again_while_a_history_cannot_be_read_in_time(
    admin: bool, connection: str, broken: list[str], unread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent("silent")
    three_stages(Recorded(silent, FLIGHTS))
    page = listed(silent, Reads("flights_etl", admin=admin), monkeypatch)
    storage = only(page)
    assert (storage.connection, [row.job for row in storage.broken], storage.unread) == (connection, broken, unread)
    assert page.moves


@pytest.mark.parametrize(("admin", "unread"), [(True, "2 more jobs"), (False, "more jobs")])
def test_page_looks_again_while_jobs_are_being_read(
    store: MemoryStore, readable: Recorded, admin: bool, unread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = list[bool]()

    async def hangs(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(True)

    async def look() -> JobsPage:
        page = await listing.jobs_page(Polls(lambda _: store, limit=0.1), Reads("flights_etl", admin=admin))
        await asyncio.sleep(0)
        assert len(given_up) == 2  # nobody waits for them any more
        return page

    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", CONNECTION)
    monkeypatch.setattr(listing, "_newest", hangs)
    page = asyncio.run(look())
    assert (only(page).unread, page.moves) == (unread, True)


def test_damaged_history_moves_nothing(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(store, BROKEN)
    recorded.started("22:00:20")
    hurt(recorded)
    assert not listed(store, Reads("flights_etl", admin=True), monkeypatch).moves
    assert listed(store, Reads("flights_etl"), monkeypatch).storages == []


def test_other_runs_are_the_newest_but_the_one_of_the_page(store: MemoryStore) -> None:
    newest = finished_and_running(store, 30)
    reference = HistoryReference(CONNECTION, newest.keys.prefix)

    async def look() -> list[str]:
        polls = Polls(lambda _: store, every=0.0, limit=60)
        reading = await polls.history(CONNECTION, newest.keys.prefix)
        return [row.run for row in await listing.other_runs(polls, Reads("flights_etl"), reference, reading)]

    assert asyncio.run(look()) == [RUN]


def test_history_that_fails_hides_the_other_runs_and_not_the_page(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newest = finished_and_running(store, 30)
    reference, poll = HistoryReference(CONNECTION, newest.keys.prefix), Polls._poll

    def fails_for_the_other(polls: Polls, connection: str, prefix: str) -> HistoryReading:
        if prefix != newest.keys.prefix:
            raise ZeroDivisionError
        return poll(polls, connection, prefix)

    async def look() -> list[JobRow]:
        polls = Polls(lambda _: store, every=0.0, limit=60)
        reading = await polls.history(CONNECTION, newest.keys.prefix)
        return await listing.other_runs(polls, Reads("flights_etl"), reference, reading)

    monkeypatch.setattr(Polls, "_poll", fails_for_the_other)
    assert asyncio.run(look()) == []
    assert f"the other runs of job {FLIGHTS}" in caplog.text


def test_list_of_jobs_asks_for_each_dag_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        Recorded(store, f"flights_etl.task-{number}").started("22:00:20")
    viewer = Reads("flights_etl")
    assert len(only(listed(store, viewer, monkeypatch)).rows) == 5
    assert viewer.asked == ["flights_etl"]


def test_list_of_jobs_reads_each_history_once(
    store: MemoryStore, readable: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_attempt(readable)
    counted = FaultyStore(store, served)
    listed(counted, Reads("flights_etl"), monkeypatch)
    first = dict(counted.requests)
    counted.requests.clear()
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", CONNECTION)

    async def two_viewers() -> None:
        polls = Polls(lambda _: counted, every=1e9, limit=60)
        await asyncio.gather(*(listing.jobs_page(polls, Reads("flights_etl")) for _ in range(2)))

    asyncio.run(two_viewers())
    assert dict(counted.requests) == first


def test_what_runs_or_is_suspended_stands_first_as_on_the_command_line(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, time in (
        ("a.old", "20:00:00"),
        ("a.starting", "20:10:00"),
        ("a.new", "23:00:00"),
        ("a.stopped", "20:20:00"),
    ):
        recorded = Recorded(store, job, scope="")
        recorded.launched(time, run="one")
        if job != "a.starting":
            recorded.attached(time)
            recorded.suspended(time) if job == "a.stopped" else recorded.ended(time, "failed", 1)
    storage = only(listed(store, Reads("a"), monkeypatch))
    assert [row.job for row in storage.rows] == ["a.stopped", "a.starting", "a.new", "a.old"]


# -- items -----------------------------------------------------------------------------------------------------------------


def test_row_of_a_mapped_job_is_the_item_that_a_person_wants_to_see(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest run has no history of its own, only those of its items."""
    for index, item in enumerate(("orders", "payments", "stock")):
        recorded = Recorded(store, FLIGHTS, RUN, item, index)
        three_stages(recorded)
        if item != "payments":
            recorded.ended("03:30:00", "failed", 1)
    (row,) = only(listed(store, Reads("flights_etl"), monkeypatch)).rows
    assert (row.run, row.state.text) == (f"{RUN}, item payments", "running, last seen")
    assert row.reference.history == f"jobs/{FLIGHTS}/runs/{RUN}/items/payments"


def test_other_items_are_other_runs_of_the_page(store: MemoryStore) -> None:
    for item in ("orders", "payments"):
        three_stages(Recorded(store, FLIGHTS, RUN, item))
    three_stages(Recorded(store, FLIGHTS, "", "shared"))

    async def others() -> list[JobRow]:
        polls = Polls(lambda _: store, every=0.0, limit=60)
        reference = HistoryReference(CONNECTION, f"jobs/{FLIGHTS}/runs/{RUN}/items/orders")
        reading = await polls.history(CONNECTION, reference.history)
        return await listing.other_runs(polls, Reads("flights_etl"), reference, reading)

    assert {row.reference.history.rsplit("/", 1)[1] for row in asyncio.run(others())} == {"payments", "shared"}


def test_page_of_an_item_names_it_and_leads_to_its_instance(store: MemoryStore) -> None:
    recorded = Recorded(store, FLIGHTS, RUN, "orders", 7)
    three_stages(recorded)
    reference = HistoryReference(CONNECTION, recorded.keys.prefix)
    reading = asyncio.run(Polls(lambda _: store, every=0.0, limit=60).history(CONNECTION, reference.history))
    page = job_page(reference, reading, at("04:00:00"))
    facts = {fact.label: fact for fact in page.head.facts}
    assert facts["Item"].text == "orders"
    assert facts["Task"].text == "flights_etl.delays[orders], try 1"
    assert facts["Task"].links[0].address.endswith(f"/runs/{RUN}/tasks/delays/mapped/7?try_number=1")
