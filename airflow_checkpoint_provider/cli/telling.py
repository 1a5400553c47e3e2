"""What a history tells beside its tables: its statistics, and the story of an attempt. Runs anywhere; reads only."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider import text
from airflow_checkpoint_provider.cli import finding, report
from airflow_checkpoint_provider.cli.finding import Found
from airflow_checkpoint_provider.cli.report import Report
from airflow_checkpoint_provider.coordinator import statistics as numbers
from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored, recalled
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.protocol.state import ABORTED, Attempt, Checkpoint, Launch, State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.story import own_stages
from airflow_checkpoint_provider.text.units import duration, size, table

# -- statistics ----------------------------------------------------------------------------------------------------------

SUBTASKS = ("state", "application", "status", "sync", "async", "new", "size")


def statistics(store: Store, job: str, run: str | None, number: str | None, item: str | None) -> Report:
    """Of the history that holds a run, or of one checkpoint."""
    found, _, number = report.shown(store, job, run, number, item)
    if number is not None:
        return _of_one(store, found, report.listed(found, number))
    answer = numbers.checkpoints(found.state, store.uri)
    data = answer | {"config": numbers.config(found.state, store.uri)}
    return Report(text.SPREAD, text.spreads(answer), data, text.statistics(found.state, answer))


def _of_one(store: Store, found: Found, checkpoint: Checkpoint) -> Report:
    """Flink has its subtasks under an address of their own; here they stand in each task."""
    answer = numbers.details(found.state, checkpoint.id, store.uri)
    tasks = {uid: numbers.subtasks(found.state, checkpoint.id, uid) for uid in answer["tasks"]}
    rows = [
        (uid, checkpoint.plan[one["index"]], one["status"], *_took(one["checkpoint"]), size(one["checkpointed_size"]), size(one["state_size"]))
        for uid, task in tasks.items()
        for one in task["subtasks"]
    ]  # fmt: skip
    lines = [
        *text.checkpoint_lines(found.state, checkpoint),
        *(f" {line}" for line in (table(SUBTASKS, rows) if rows else [])),
    ]
    return Report(SUBTASKS, rows, answer | {"tasks": tasks}, lines)


def _took(parts: dict[str, int]) -> tuple[str, str]:
    return duration(parts["sync"] / 1000), duration(parts["async"] / 1000)


# -- story ---------------------------------------------------------------------------------------------------------------

STORY = ("ID", "VERDICT", "WHY", "TAKEN", "SIZE")


def story(store: Store, job: str, run: str | None, epoch: int | None, item: str | None) -> Report:
    """Of the newest launch of a job or a run, or of a numbered attempt. Raises ``CheckpointNotFound``."""
    found, key = finding.meant(store, job, run, item)
    launch, attempt = _asked_for(found.state, key, epoch)
    restored = recalled(
        found.state,
        attempt.restore_point if attempt else launch.restore_point,
        attempt.epoch if attempt else found.state.last_epoch + 1,
    )
    rows = [
        (f"chk-{one.checkpoint.id}", one.verdict, _why(one), one.checkpoint.completed_at, size(one.checkpoint.bytes))
        for one in restored.candidates
    ]  # fmt: skip
    return Report(
        STORY, rows, _story_data(found.state, launch, attempt, restored), text.retold(found.state, launch, attempt)
    )


def _why(one: Candidate) -> str:
    return f"{one.why} ({one.checkpoint.reason})" if one.checkpoint.reason else one.why


def _asked_for(state: State, run: str | None, epoch: int | None) -> tuple[Launch, Attempt | None]:
    launches = [one for one in state.launches if run in (None, one.run)]
    attempt = state.attempt(epoch)
    if epoch is None and launches:
        return launches[-1], state.attempt_of(launches[-1].number)
    launch = next((one for one in launches if attempt and one.number == attempt.launch), None)
    if launch is None:
        where = state.job + (f", run {run}" if run else "")
        what = f"no attempt {epoch}" if epoch is not None else "no launch"
        raise CheckpointNotFound(f"{where}: {what} is listed; `list {state.job}` prints runs and attempts")
    return launch, attempt


def _story_data(state: State, launch: Launch, attempt: Attempt | None, restored: Restored) -> dict[str, Any]:
    chosen = next((one.checkpoint for one in restored.candidates if one.verdict == "chosen"), None)
    kept = own_stages(chosen.states, launch.run) if chosen else []
    own = [one for one in state.checkpoints if attempt and attempt.epoch in one.epochs]
    return {
        "job": state.job,
        "run": launch.run,
        "try": launch.latest_try,
        "attempt": attempt.epoch if attempt else None,
        "at": attempt.at if attempt else launch.at,
        "restore": launch.restore,
        "restore_point": str(restored.point) if restored.point else None,
        "candidates": [
            {"id": one.checkpoint.id, "verdict": one.verdict, "why": one.why, "reason": one.checkpoint.reason,
             "at": one.checkpoint.completed_at, "bytes": one.checkpoint.bytes}
            for one in restored.candidates
        ],
        "not_run_again": [{"uid": one.uid, "work_s": one.measures.work_s} for one in kept],
        "completed": [one.id for one in own if one.completed_at],
        "aborted": [
            {"id": one.id, "reason": one.reason, "phase": one.phase, "words": one.words} for one in own if one.status == ABORTED
        ],
        "stop": launch.stop,
        "how": attempt.how if attempt else None,
        "exit_code": attempt.exit_code if attempt else None,
        "ended_at": attempt.ended_at if attempt else None,
    }  # fmt: skip
