"""The lines of ``restore`` about what it leaves behind: checkpoints, and rows in sinks."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin, Retention
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import delta_commit
from airflow_checkpoint_provider.protocol.transactions import SinkDetail
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import Recorded
from tests.unit.cli.conftest import Command
from tests.unit.cli.kafka_jobs import save

# -- checkpoints that are left behind ------------------------------------------------------------------------------------


def abandoned(checkpoints: Command, where: str) -> str:
    """Return what a restore of ``orders`` says of the checkpoints that it leaves behind."""
    done = checkpoints("restore", "orders", "--from", where, "--yes")
    assert done.code == 0, done.err
    return next((line.removeprefix("  abandoned   ") for line in done.lines if line.startswith("  abandoned")), "")


def test_checkpoints_of_an_older_branch_are_abandoned_too(store: LocalStore, checkpoints: Command) -> None:
    """A restore of "latest", as after each stop, opens a branch. The checkpoints from before it are still the newest of the job."""
    job = Job(store)
    job.start(retention=KeepAll())
    for _ in range(3):
        job.take()
    assert abandoned(checkpoints, "latest") == ""
    job.start(try_number=2, retention=KeepAll())
    assert abandoned(checkpoints, "latest") == "", "the attempt has completed none"
    job.start(try_number=3, retention=KeepAll())
    job.take()
    assert abandoned(checkpoints, "chk-4") == "", "that is the newest"
    assert abandoned(checkpoints, "chk-1").startswith('chk-2, chk-3, chk-4. "latest" no longer means them.')
    assert abandoned(checkpoints, "latest") == "", "they are abandoned already"
    assert abandoned(checkpoints, "none").startswith("chk-1, chk-2, chk-3, chk-4.")


@pytest.mark.parametrize(
    ("retention", "becomes"),
    [
        (KeepAll(), "They stay listed, and can be restored by id"),
        (KeepLatest(3), "until retention=KeepLatest(3) deletes them, the last one after 3 newer checkpoints."),
        (KeepLatest(2) | KeepWithin(days=1), "until retention= deletes them. To keep them, set retention="),
    ],
)
def test_abandoned_checkpoints_stay_as_long_as_the_policy_keeps_them(
    store: LocalStore, checkpoints: Command, retention: Retention, becomes: str
) -> None:
    job = Job(store)
    job.start(retention=retention)
    for _ in range(3):
        job.take()
    assert becomes in abandoned(checkpoints, "chk-1")


def test_abandoned_savepoints_stay(store: LocalStore, checkpoints: Command) -> None:
    job = Job(store)
    job.start()
    job.take()
    job.save()
    assert abandoned(checkpoints, "chk-1").endswith("means them. They stay listed, and can be restored by id")
    job.start(try_number=2)
    job.take()
    assert 'chk-2, chk-3. "latest" no longer means them. The savepoints stay. The others can' in abandoned(
        checkpoints, "none"
    )


# -- rows in sinks -------------------------------------------------------------------------------------------------------


def saved_sink(version: int, run: str, uid: str = "report", target: str = "/data/report") -> StateSnapshot:
    """Return a sink of which ``run`` has made the newest write."""
    return StateSnapshot(uid=uid, kind="sink", run=run, sink=SinkDetail(format="files", target=target, version=version))


def effects(checkpoints: Command, where: str, *options: str) -> str:
    """Return what a restore of ``orders`` would do to its sinks."""
    done = checkpoints("restore", "orders", "--from", where, *options, "--dry-run")
    assert done.code == 0, done.err
    labels = ("  goes back   ", "  deletes     ", "  may refuse  ")
    return "\n".join(line.removeprefix("  ") for line in done.lines if line.startswith(labels))


@pytest.fixture
def two_runs(store: LocalStore) -> Recorded:
    """Return a job of which a run has finished, and another one has taken two checkpoints. Each has written to a sink."""
    job = Recorded(store, job="orders", scope="")
    for hour, run, versions in ((19, "monday", [1]), (20, "tuesday", [2, 3])):
        job.launched(f"{hour}:00:00", run=run)
        job.attached(f"{hour}:00:01", **CheckpointConfig(retention=KeepAll()).to_json())
        for version in versions:
            job.states["report"] = saved_sink(version, run)
            job.completed("end", f"{hour}:01:00", f"{hour}:02:00")
        if run == "monday":
            job.ended(f"{hour}:03:00")
    return job


def test_restore_says_that_a_sink_may_hold_rows_of_later_runs(two_runs: Recorded, checkpoints: Command) -> None:
    """Else the driver refuses it hours later, or deletes rows that nobody was told of."""
    two_runs.ended("21:00:00")
    assert effects(checkpoints, "latest") == ""
    rows = "sink 'report': rows that later runs have committed to /data/report"
    for where in ("chk-1", "chk-2", "run-start", "none"):
        assert effects(checkpoints, where).startswith(f"may refuse  {rows} stay. If there are any, the driver refuses")
        assert effects(checkpoints, where, "--rewind-sink").startswith(f"deletes     {rows} are deleted for good when")


def test_restore_is_silent_about_the_rows_of_the_run_that_starts_again(
    two_runs: Recorded, checkpoints: Command
) -> None:
    two_runs.ended("21:00:00", "failed", 1)
    for where in ("chk-2", "run-start"):
        assert effects(checkpoints, where, "--rewind-sink") == effects(checkpoints, where) == ""
    assert "'report'" in effects(checkpoints, "none"), "the rows of monday"


def test_restore_counts_what_a_sink_has_written_under_another_name(two_runs: Recorded, checkpoints: Command) -> None:
    two_runs.ended("21:00:00")
    rename = ("--rename", "report=rapport")
    assert effects(checkpoints, "latest", *rename) == ""
    assert effects(checkpoints, "chk-1", *rename).startswith("may refuse  sink 'report': rows that later runs have")
    assert checkpoints("restore", "orders", "--from", "latest", *rename, "--yes").code == 0
    assert effects(checkpoints, "latest", *rename) == effects(checkpoints, "latest") == ""
    assert "sink 'rapport': rows that later runs have" in effects(checkpoints, "chk-1", *rename)


def test_restore_is_silent_about_sinks_without_rows(job: Job, checkpoints: Command) -> None:
    job.complete(job.coordinator.trigger(Request(token="later")), saved_sink(2, "later", "numbers", "numbers"))
    assert effects(checkpoints, "chk-1") == ""


@pytest.mark.parametrize(
    ("sink", "newest_file", "effect"),
    [
        ("parquet", None, "The files of later batches in /data/out are moved aside; `checkpoints {root} rewound /data/out` lists"),
        ("delta", delta_commit(4), "Its table /data/out is not changed: take it back yourself with RESTORE TABLE delta.`/data/out` TO"),
        ("delta", None, "Its table /data/out is not changed: take it back yourself, or the query is refused (CKP401)"),
        ("console", None, "Its sink, console, keeps the rows of later batches, and gets them a second time"),
    ],
)  # fmt: skip
def test_restore_says_what_happens_to_the_rows_of_a_query(
    gone_on: Job, checkpoints: Command, sink: str, newest_file: str | None, effect: str
) -> None:
    save(gone_on, "{}", sink=sink, path="/data/out", newest_file=newest_file)
    said = effects(checkpoints, "chk-3", "--rewind-sink")
    root = f"--root {gone_on.store.uri[7:]}"
    assert said.startswith(f"goes back   query 'clicks', to batch 3. {effect.replace('{root}', root)}")
    assert ("a stream of another job that has read them there reads them twice" in said) is (sink == "parquet")
    assert effects(checkpoints, "latest") == "", "a query continues after its newest batch"
