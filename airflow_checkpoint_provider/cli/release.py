"""The verb that lets a streaming query go on without this package. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, confirm, entry_author
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.query_location import hadoop_uri
from airflow_checkpoint_provider.coordinator.releasing import Going, Release
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.protocol.keys import History, Keys, check_job_id
from airflow_checkpoint_provider.protocol.wording import command
from airflow_checkpoint_provider.storage import Store

RELEASED = ("JOB", "QUERY", "LOCATION", "NEXT BATCH")


def release(store: Store, job: str, uid: str, to: str, adopted: str | None, approval: Approval) -> Report:
    """Copy the newest location of a query into the folder ``to``, where it goes on. Raises what ``Release`` raises."""
    keys = Keys(History(check_job_id(job)).prefix)  # queries need one history for all runs
    journal = Journal(store, keys, entry_author())
    if journal.catch_up().n < 0:
        raise CheckpointNotFound(
            f"there is no job {job!r} with streaming queries under {store.uri}. `{command('jobs')}` lists all jobs"
        )
    going = Release(Coordinator(journal), uid, to, adopted)
    lines = _lines(job, told := going.look())
    if approval.dry_run:
        return _report(job, told, [*lines, DRY_RUN])
    confirm(job, lines, approval)
    told = going.carry_out(entry_author().owner)
    return _report(job, told, [*(lines if approval.yes else []), f"done: {_start(told)}"])


def _lines(job: str, told: Going) -> list[str]:
    if told.done:
        return [
            f"query '{told.uid}' of {job} was already released to {told.to.uri}; this only fetches what an older driver has written since"
        ]
    return [
        f"RELEASE query '{told.uid}' of {job}: it continues with batch {told.position.committed + 1} in {told.to.uri}, without this package",
        "from then on, start_query refuses this query unless adopt= names that folder",
    ]


def _start(told: Going) -> str:
    return f"start the script without this package, with checkpointLocation {hadoop_uri(told.to.uri)}"


def _report(job: str, told: Going, lines: list[str]) -> Report:
    data = {"job": job, "query": told.uid, "location": told.to.uri, "next_batch": told.position.committed + 1}
    return Report(RELEASED, [tuple(map(str, data.values()))], data, lines)
