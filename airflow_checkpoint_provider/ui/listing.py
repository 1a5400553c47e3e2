"""The jobs and runs that a user may see, read side by side. Runs in Airflow (API server)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.histories import NEWEST
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound, StoreUnavailable, meaning, printable
from airflow_checkpoint_provider.hooks.connections import SELDOM
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.lifetime import last_moved
from airflow_checkpoint_provider.text.job_list import on_call
from airflow_checkpoint_provider.text.units import plural
from airflow_checkpoint_provider.ui import connections
from airflow_checkpoint_provider.ui.access import Viewer
from airflow_checkpoint_provider.ui.polling import HistoryReading, Polls
from airflow_checkpoint_provider.ui.threads import in_thread
from airflow_checkpoint_provider.ui.views.jobs import BrokenRow, JobRow, JobsPage, Storage, job_row

_log = logging.getLogger(__name__)

ITEMS = 100  # histories of items that are read, of the newest run
JOBS = 200  # of a connection that are read
MORE = "more jobs"  # for users who may not know how many there are


async def jobs_page(polls: Polls, viewer: Viewer, part: int = 1) -> JobsPage:
    """Return the jobs of the named connections: of each, those in a ``part`` of ``JOBS`` names.

    A connection that does not answer is listed with its error, and delays no other. For a user without any right, no connection is asked.
    """
    named = connections.named() if await in_thread(viewer.reads_any) else []
    storages = await asyncio.gather(*(_storage(polls, viewer, connection, part) for connection in named))
    return JobsPage([storage for storage in storages if not storage.empty])


async def other_runs(
    polls: Polls, viewer: Viewer, reference: HistoryReference, reading: HistoryReading
) -> list[JobRow]:
    """Return the newest other histories of the job of a page; none if that fails unexpectedly."""
    job = reading.found.state.job
    try:
        found = await _histories(polls, reference.connection, job)
        others = [each for each in found if isinstance(each, HistoryReading) and each.found.keys != reading.found.keys]
        return await in_thread(_rows, viewer, reference.connection, others, len(others))
    except Exception:  # noqa: BLE001 - the page itself is whole
        _log.exception("the other runs of job %s of connection %s", printable(job), reference.connection)
        return []


async def _storage(polls: Polls, viewer: Viewer, connection: str, part: int) -> Storage:
    administers = await in_thread(viewer.administers, connection)
    try:
        names = await polls.jobs(connection)
    except CheckpointError as error:
        # Other users learn that a connection fails, because a job of theirs may be there, but not which one.
        return Storage(connection if administers else "", problem=_text(error, administers))
    tasks = [
        asyncio.create_task(_newest(polls, viewer, connection, job)) for job in names[(part - 1) * JOBS : part * JOBS]
    ]
    done, unread = await asyncio.wait(tasks, timeout=polls.limit) if tasks else (set(), set())
    for task in unread:  # a question that the store already has goes on
        task.cancel()
    answers = [task.result() for task in done]
    rows = [row for found, _ in answers for row in found]
    rows.sort(key=lambda row: (row.order, row.job), reverse=True)
    broken, cut = [row for _, found in answers for row in found], max(0, len(names) - part * JOBS)
    if administers:
        return Storage(connection, rows, broken, unread=_more(len(unread)), left_out=_more(cut))
    # The owner of a broken history cannot be read either. So other users learn only that the list may not be whole.
    waits = unread or any(row.passing for row in broken)
    return Storage(connection if rows else "", rows, unread=MORE if waits else "", left_out=MORE if cut else "")


def _more(count: int) -> str:
    return plural(count, "more job") if count else ""


async def _newest(polls: Polls, viewer: Viewer, connection: str, job: str) -> tuple[list[JobRow], list[BrokenRow]]:
    """Return the row of a job's newest history that the user may see, and of a newest history that cannot be read."""
    try:
        found = await _histories(polls, connection, job)
        readings = [each for each in found if isinstance(each, HistoryReading)]
        rows = await in_thread(_rows, viewer, connection, readings, 1)
    except Exception:  # noqa: BLE001 - one job must not hide the others
        _log.exception("the row of job %s of connection %s", printable(job), connection)
        failed = CheckpointError("This row failed. The log of the API server says why.")
        return [], [_broken(job, failed)]
    errors = [each for each in found if isinstance(each, CheckpointError)]
    passing = any(isinstance(error, StoreUnavailable) for error in errors)
    return rows, [replace(_broken(job, error), passing=passing) for error in errors[:1]]


def _broken(job: str, error: CheckpointError) -> BrokenRow:
    return BrokenRow(job, error.message, error.code, meaning(type(error)))


async def _histories(polls: Polls, connection: str, job: str) -> list[HistoryReading | CheckpointError]:
    """Return the history that all runs share and those of the newest runs, the last changed first, and errors for the others."""
    try:
        newest, *older = ((await polls.runs(connection, job)) or [History(job).prefix])[:NEWEST]
        shared = History(job).prefix
        items = (await polls.items(connection, shared))[:ITEMS]
    except CheckpointError as error:
        return [error]
    answers = await asyncio.gather(
        polls.listed(connection, newest),
        *(polls.listed(connection, prefix) for prefix in items),
        *(polls.history(connection, prefix, within=SELDOM) for prefix in {*older, shared} - {newest}),
        return_exceptions=True,
    )
    if isinstance(answers[0], CheckpointNotFound) and newest != shared:  # the run has a history for each item
        answers += await _items(polls, connection, newest)
    readings = [answer for answer in answers if isinstance(answer, HistoryReading)]
    readings.sort(key=lambda reading: last_moved(reading.found.state), reverse=True)
    if readings and readings[0].found.state.item:
        newest_run = readings[0].found.newest_run
        readings.sort(key=lambda reading: _urgency(reading, newest_run), reverse=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if unexpected := next((error for error in errors if not isinstance(error, CheckpointError)), None):
        raise unexpected
    return [*readings, *(e for e in errors if isinstance(e, CheckpointError) and not isinstance(e, CheckpointNotFound))]


async def _items(polls: Polls, connection: str, run: str) -> list[HistoryReading | BaseException]:
    """Return the histories of the items of a run, or their errors."""
    try:
        items = (await polls.items(connection, run))[:ITEMS]
    except CheckpointError as error:
        return [error]
    reads = (polls.listed(connection, prefix) for prefix in items)
    return await asyncio.gather(*reads, return_exceptions=True)


def _urgency(reading: HistoryReading, run: str) -> tuple[bool, bool, str]:
    """Return the key by which the histories of a mapped task are listed: items of ``run`` first, of them those that run or wait."""
    found = reading.found
    return found.state.item is not None and found.newest_run == run, *on_call(found)


def _rows(viewer: Viewer, connection: str, readings: list[HistoryReading], most: int) -> list[JobRow]:
    """Return the rows of the first ``most`` histories that the user may see."""
    visible = (reading for reading in readings if viewer.sees(reading.found.state, connection))
    return [job_row(connection, reading, utc_now()) for reading in itertools.islice(visible, most)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(error: CheckpointError, full: bool) -> str:
    """Return an error as its reader may see it: its text may quote a connection or stored data."""
    return _capital(str(error)) if full else f"{meaning(type(error))}  [{error.code}]"
