"""The start of a script without Airflow: where it starts, what it refuses, and what it deletes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.garbage import orphans
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]


def count_to(script: Script, last: int, **options: object) -> None:
    """A run with one checkpoint per number."""
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll()), **options) as job:
        count = job.value("count", 0)
        while count.get() < last:
            count.set(count.get() + 1)
            job.checkpoint()


def begins_with(script: Script, **options: object) -> int:
    """The value with which a new run begins; it fails, so that the run goes on."""
    with script.failing(**options) as job:
        return int(job.value("count", 0).get())
    raise AssertionError


def test_system_that_cannot_watch_the_jvm_is_refused_before_an_attempt_begins(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: int) -> int:
        raise PermissionError("seccomp")

    monkeypatch.setattr(os, "pidfd_open", denied)
    with pytest.raises(WrongUse, match="cannot be watched"), script.attempt():
        raise AssertionError
    assert not (script.root / History("job").prefix).exists()


# -- restore= ----------------------------------------------------------------------------------------------------------


def test_new_run_starts_where_restore_says(script: Script) -> None:
    count_to(script, 3)
    pointer = f"file://{script.root}/jobs/job/job/chk-2"
    for restore, value in (("latest", 3), ("none", 0), (1, 1), ("chk-2", 2), (pointer, 2)):
        copy = Path(shutil.copytree(script.root, script.root.with_name(f"copy {value} {str(restore)[:4]}")))
        assert begins_with(script, root=str(copy), restore=restore) == value


def test_retries_of_a_run_ignore_restore(script: Script) -> None:
    count_to(script, 3)
    with script.failing(restore=1) as job:
        count = job.value("count")
        assert count.get() == 1
        job.stage("clean", job.spark.range(3))
        count.set(10)
        job.stage("more", job.spark.range(3))
    with script.failing(restore=1) as job:
        count = job.value("count")
        job.stage("clean", job.spark.range(3))
        job.stage("more", job.spark.range(3))
        assert count.get() == 10
        assert job.restored
        assert job.restored.id == 5


def test_retry_does_not_need_the_checkpoint_of_restore(script: Script) -> None:
    """It may have gone meanwhile."""
    count_to(script, 3)
    keep = CheckpointConfig(retention=KeepAll())
    with script.failing(
        restore="file:///nowhere/jobs/job/job/chk-1".replace("/nowhere", str(script.root)), checkpointing=keep
    ) as job:
        job.value("count").set(10)
        job.checkpoint()
    with script.attempt(restore="chk-99") as job:
        assert job.restored
        assert job.restored.id == 4


def test_run_starts_from_an_older_checkpoint_if_the_newest_is_damaged(script: Script, capsys: CaptureFixture) -> None:
    count_to(script, 2)
    (script.root / "jobs/job/job/chk-2/_metadata").write_bytes(b"{}")
    with pytest.raises(SystemExit) as left:
        script.attempt().__enter__()
    assert left.value.code == 3
    assert "chk-2 cannot be restored" in capsys.readouterr().out
    assert begins_with(script, restore=1) == 1


def test_run_starts_with_the_values_of_another_jobs_checkpoint(script: Script) -> None:
    """Its values, not its stages: those belong to its run, which here has the same name."""
    with script.attempt(job_id="other") as job:
        job.stage("clean", job.spark.range(3))
        job.value("count").set(7)
    clean = script.recomputes("clean")
    with script.attempt(restore=f"file://{script.root}/jobs/other/job/chk-2") as job:
        assert job.stage("clean", job.spark.range(3)).count() == 3
        assert job.value("count").get() == 7
    assert clean()
    shutil.rmtree(script.root / "jobs/other")
    with script.attempt() as job:
        assert job.value("count").get() == 7, "no reference leaves the history"


# -- beside another ----------------------------------------------------------------------------------------------------


def test_script_is_refused_if_another_began_a_moment_before(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """It has won the entry that this one wants, and has not beaten yet."""
    others: list[CheckpointedJob] = []

    def meanwhile(call: Call) -> Fault:
        if call.key.endswith("/journal/0000000000000000") and call.kind == "create" and not others:
            others.append(script.attempt())
            others[0].__enter__()
            script.lose_beats()
        return Fault.NONE

    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), meanwhile))
    with pytest.raises(SystemExit) as left:
        script.attempt().__enter__()
    assert left.value.code == 3
    assert "job is already running" in capsys.readouterr().out
    others[0].__exit__(None, None, None)
    assert [attempt.outcome for attempt in script.coordinator().state.attempts] == ["finished"]


# -- leftovers ---------------------------------------------------------------------------------------------------------


def folders(script: Script) -> list[str]:
    """File sets and checkpoints on disk."""
    history = script.root / "jobs/job/job"
    found = (*history.glob("state/*/*"), *history.glob("chk-*"))
    return sorted(str(path.relative_to(history)) for path in found if path.is_dir())


@pytest.fixture
def leftover(script: Script) -> Callable[[str], Path]:
    def make(path: str) -> Path:
        folder = script.root / "jobs/job/job" / path
        folder.mkdir(parents=True)
        (folder / "part-0").write_text("rows")
        (folder / ".part-0.crc").write_text("crc")
        return folder

    return make


def test_next_start_deletes_files_of_dead_attempts(script: Script, leftover: Callable[[str], Path]) -> None:
    with script.failing() as job:
        job.stage("clean", job.spark.range(3))
        gone = [leftover("state/clean/1-aa"), leftover("state/never acknowledged/1-bb/_temporary/0")]
    stays = [leftover("state/clean/7-cc"), leftover("state/clean/notes"), leftover("chk-99")]
    kept = [name for name in folders(script) if not name.endswith(("1-aa", "1-bb"))]
    with script.failing():
        pass
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stays), (
        "of an attempt or a checkpoint that nobody knows yet, or nothing of ours"
    )
    assert folders(script) == kept


def test_failed_deletion_is_logged_and_the_job_goes_on(
    script: Script, monkeypatch: pytest.MonkeyPatch, leftover: Callable[[str], Path], capsys: CaptureFixture
) -> None:
    with script.failing():
        left = leftover("state/clean/1-aa")
    deny = FaultyStore(LocalStore(script.root), lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE)
    monkeypatch.setattr(Settings, "open_store", lambda _: deny)
    with script.attempt() as job:
        assert job.stage("clean", job.spark.range(3)).count() == 3
    assert left.exists()
    assert "Leftovers of earlier attempts could not be deleted. The next start tries again" in capsys.readouterr().out


def test_old_rows_of_a_recomputed_stage_are_deleted_when_no_checkpoint_holds_them(script: Script) -> None:
    with script.failing() as job:
        job.stage("clean", job.spark.range(3))
    old = [name for name in folders(script) if name.startswith("state/clean")]
    with script.attempt() as job:
        job.stage("clean", job.spark.range(4))
        assert set(old) <= set(folders(script)), "the restore point holds them"
        for number in range(3):
            job.value(f"value {number}").set(1)
            job.checkpoint()
        wait_until(lambda: not set(old) & set(folders(script)), say="no DataFrame of this attempt reads them")
    assert orphans(script.coordinator()) == ()
