"""The verb that lets a streaming query go on without this package. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.cli import LIMIT, locate
from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, confirm, entry_author
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.histories import histories
from airflow_checkpoint_provider.coordinator.releasing import Release, ReleasePlan
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.location.files import hadoop_uri
from airflow_checkpoint_provider.protocol.keys import History, check_item, check_job_id
from airflow_checkpoint_provider.storage import Store

RELEASED = ("JOB", "QUERY", "LOCATION", "NEXT BATCH")


def release(
    store: Store, job: str, uid: str, to: str, adopted: str | None, approval: Approval, item: str | None = None
) -> Report:
    """Copy the newest location of a query into the folder ``to``, where it goes on. Raises what ``Release`` raises."""
    history = History(
        check_job_id(job), item=None if item is None else check_item(item)
    )  # queries need one history for all runs
    coordinator = open_history(store, history.prefix, entry_author())
    if coordinator.journal.catch_up().n < 0:
        raise _no_history(store, job, item)
    leaving = Release(coordinator, uid, to, adopted)
    plan = leaving.plan()
    lines = _lines(job, plan)
    if approval.dry_run:
        return _report(job, plan, [*lines, DRY_RUN])
    confirm(job, lines, approval)
    plan = leaving.run(entry_author().owner)
    return _report(job, plan, [*(lines if approval.yes else []), f"done: {_start(plan)}"])


def _no_history(store: Store, job: str, item: str | None) -> CheckpointNotFound:
    """Return the error for a job without a history that all its runs share."""
    found = histories(store, job, LIMIT).found if item is None else ()
    if any(history.state.item and not history.state.scope for history in found):
        return CheckpointNotFound(f"each item of {job!r} has a history of its own. Name the item: --item=ITEM")
    if found:
        return CheckpointNotFound(
            f'each run of {job!r} has a history of its own. Only a job with scope="job" can release a query'
        )
    of_item = f", item {item!r}," if item else ""
    return locate.no_job(store, job, f"there is no job {job!r}{of_item} with streaming queries under {store.uri}")


def _lines(job: str, plan: ReleasePlan) -> list[str]:
    if plan.done:
        return [
            f"query '{plan.uid}' of {job} was already released to {plan.to.uri}; this only fetches the state that an older driver has written since"
        ]
    return [
        f"RELEASE query '{plan.uid}' of {job}: it continues with batch {plan.position.committed + 1} in {plan.to.uri}, without this package",
        "from then on, start_query refuses this query unless adopt= names that folder",
    ]


def _start(plan: ReleasePlan) -> str:
    return f"start the script without this package, with checkpointLocation {hadoop_uri(plan.to.uri)}"


def _report(job: str, plan: ReleasePlan, lines: list[str]) -> Report:
    data = {"job": job, "query": plan.uid, "location": plan.to.uri, "next_batch": plan.position.committed + 1}
    return Report(RELEASED, [tuple(map(str, data.values()))], data, lines)
