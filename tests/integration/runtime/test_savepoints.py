"""Savepoints of a running job: taken at its barriers, complete without the job, and usable as a start."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Beat, read_beat
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, delete_savepoint
from airflow_checkpoint_provider.errors import Damaged, Queued, SavepointDisposed
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import History, Keys, SavepointPointer
from airflow_checkpoint_provider.spark import CheckpointedJob, attempt_run, open_checkpoint
from airflow_checkpoint_provider.spark.attempt import journal_writer, start
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.state.snapshot import AttemptEnds, NotWanted
from airflow_checkpoint_provider.storage import LocalStore, copy_all
from airflow_checkpoint_provider.text.work import reused_stages
from tests.integration.runtime.conftest import Broken, Script
from tests.support.parts import parts
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]


def stage(job: CheckpointedJob, uid: str, rows: int = 3) -> int:
    return job.stage(uid, job.spark.range(rows)).count()


def ask(script: Script, target: Path, request: str = "a person", timeout_s: float = 60.0) -> int:
    return script.coordinator().trigger(
        Request(token=request, kind="savepoint", folder=f"file://{target}", timeout_s=timeout_s, origin="task")
    )


def ask_for_all(script: Script, timeout_s: float = 60.0) -> int:
    return script.coordinator().trigger(
        Request(token="all of it", kind="full_checkpoint", timeout_s=timeout_s, origin="task")
    )


def await_completed(script: Script, number: int) -> None:
    """A script that fails meanwhile breaks the copy of its savepoint off."""
    wait_until(lambda: script.checkpoint(number).completed_at, say=f"nobody completes chk-{number}")


def place(script: Script, number: int) -> str:
    return script.checkpoint(number).target or ""


def file_sets(script: Script, uid: str, job: str = "job") -> list[str]:
    """The directories in which rows of a stage lie, below the history."""
    return sorted(folder.name for folder in (script.root / "jobs" / job / "job" / "state" / uid).iterdir())


# -- taking one --------------------------------------------------------------------------------------------------------


def test_savepoint_holds_the_states_of_its_barrier_and_needs_no_history(
    script: Script, tmp_path: Path, capsys: CaptureFixture
) -> None:
    with script.attempt() as job:
        job.value("count").set({"a": 1})
        stage(job, "first", rows=5)
        number = ask(script, tmp_path / "saved")
        stage(job, "second")
        job.checkpoint()
        stage(job, "third")
    pointer = place(script, number)
    assert f"chk-{number} completed at stage 'second'" in capsys.readouterr().out
    assert script.checkpoint(number).published
    shutil.rmtree(script.root)
    opened = open_checkpoint(pointer, script.spark)
    assert opened.uids == ("count", "first", "second")
    assert (opened["first"].count(), opened["second"].count(), opened["count"]) == (5, 3, {"a": 1})


def test_barrier_takes_its_own_checkpoint_beside_a_savepoint(script: Script, tmp_path: Path) -> None:
    """The job is protected whatever becomes of the savepoint."""
    with script.attempt() as job:
        number = ask(script, tmp_path / "saved")
        stage(job, "first")
    kinds = [
        (checkpoint.id, checkpoint.kind, checkpoint.status) for checkpoint in script.coordinator().state.checkpoints
    ]
    assert kinds == [(number, "savepoint", RETAINED), (number + 1, "checkpoint", RETAINED)]


def test_savepoint_requested_after_the_last_stage_is_taken_at_the_end(script: Script, tmp_path: Path) -> None:
    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        number = ask(script, tmp_path / "saved")
    assert script.checkpoint(number).status == RETAINED
    assert script.coordinator().state.runs[-1].outcome == "finished"


def test_savepoints_are_taken_in_the_order_of_their_ids(script: Script, tmp_path: Path, capsys: CaptureFixture) -> None:
    with script.attempt() as job:
        numbers = [ask(script, tmp_path / name, name) for name in ("one", "two", "three")]
        stage(job, "first")
        job.checkpoint()
        parts(job).checkpointer.savepoints.wait_begun()
        out = [line for line in capsys.readouterr().out.splitlines() if "; target " in line]
        assert [int(line.split()[0].removeprefix("chk-")) for line in out] == numbers


def test_job_goes_on_if_the_target_of_a_savepoint_cannot_be_written(
    script: Script, tmp_path: Path, capsys: CaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    with script.attempt() as job:
        number = ask(script, tmp_path / "file")
        stage(job, "first")
        job.checkpoint()
        stage(job, "second")
    gone = script.checkpoint(number)
    assert (gone.status, gone.reason) == (ABORTED, "store failed")
    out = capsys.readouterr().out
    assert f"ABORTED chk-{number} of job: store failed" in out
    assert f"check {gone.target}, then trigger another savepoint" in out
    assert "NOT PROTECTED" not in out
    assert script.coordinator().state.runs[-1].outcome == "finished"


def test_savepoint_that_is_copied_too_slowly_is_aborted_and_deleted(script: Script, tmp_path: Path) -> None:
    """Which is no failure that the job would count."""
    with script.attempt(checkpointing=CheckpointConfig(tolerable_failures=0)) as job:
        number = ask(script, tmp_path / "saved", timeout_s=0.0)
        stage(job, "first")
        job.checkpoint()
        parts(job).checkpointer.savepoints.wait_begun()
        assert (script.checkpoint(number).status, script.checkpoint(number).reason) == (ABORTED, "expired")
        assert not Path(place(script, number).removeprefix("file://")).exists()


def test_savepoint_aborted_during_its_copy_is_deleted(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:

    def copy_slowly(*args: Any) -> None:
        script.coordinator().abort(number, "changed my mind")
        wait_until(lambda: not parts(job).attempt.journal.state.pending, say="the watch has not seen it")
        copy_all(*args)

    monkeypatch.setattr(copies, "copy_all", copy_slowly)
    with script.attempt() as job:
        number = ask(script, tmp_path / "saved")
        stage(job, "first")
    assert script.checkpoint(number).reason == "changed my mind"
    assert f"ABORTED chk-{number} of job: changed my mind" in capsys.readouterr().out


# -- what else waits at a barrier --------------------------------------------------------------------------------------


def test_queued_requests_are_served_at_the_same_barrier(script: Script) -> None:
    """Who asked in minute five does not wait for the next stage because another's was in the way."""
    with script.attempt() as job:
        first = script.coordinator().trigger(Request(token="one", timeout_s=60.0, origin="task"))
        for name in ("two", "three"):
            with pytest.raises(Queued):
                script.coordinator().trigger(Request(token=name, timeout_s=60.0, origin="task"))
        stage(job, "first")
        parts(job).checkpointer.wait()
        done = [
            (checkpoint.id, checkpoint.request.token, checkpoint.status)
            for checkpoint in script.coordinator().state.checkpoints
        ]
        assert [request for _, request, _ in done] == ["one", "two", "three"]
        assert done[0][0] == first
        assert all(checkpoint.completed_at for checkpoint in script.coordinator().state.checkpoints)


def test_full_checkpoint_shares_no_file_with_an_older_checkpoint(script: Script) -> None:
    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        before = file_sets(script, "first")
        number = ask_for_all(script)
        stage(job, "second")
        job.checkpoint()
        coordinator = script.coordinator()
        full = coordinator.read_seal(script.checkpoint(number)).states["first"].file_sets[0]
        assert len(file_sets(script, "first")) == len(before) + 1
        assert not full.path.endswith(before[0])
        assert full.identity.endswith(before[0])
        later = coordinator.read_seal(coordinator.state.retained[-1]).states["first"].file_sets[0]
        assert later == full, "later ones build on it"


def test_full_checkpoint_that_is_copied_too_slowly_expires_and_a_plain_one_completes(script: Script) -> None:
    with script.attempt() as job:
        number = ask_for_all(script, timeout_s=0.0)
        stage(job, "first")
        parts(job).checkpointer.wait()
        assert (script.checkpoint(number).status, script.checkpoint(number).reason) == (ABORTED, "expired")
        assert [checkpoint.id for checkpoint in script.coordinator().state.retained] == [number + 1]


@pytest.mark.parametrize("way", ["aborted", pytest.param("closed", marks=pytest.mark.slow)])  # both stop the copy alike
def test_full_checkpoint_that_was_aborted_is_not_copied_to_its_end(
    way: str, script: Script, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    ended: list[type[Exception]] = []

    def copy_slowly(*args: Any) -> None:
        if way == "aborted":
            script.coordinator().abort(number, "changed my mind")
            wait_until(lambda: not parts(job).attempt.journal.state.pending, say="the watch has not seen it")
        else:
            wait_until(parts(job).checkpointer._context.closing.is_set, say="the job does not end")
        try:
            copy_all(*args)
        except NotWanted as over:
            ended.append(type(over))
            raise

    monkeypatch.setattr(copies, "copy_all", copy_slowly)
    with script.failing() as job:
        number = ask_for_all(script)
        stage(job, "first")
    assert ended == [{"aborted": NotWanted, "closed": AttemptEnds}[way]]
    reason = {"aborted": "changed my mind", "closed": "attempt ended"}[way]
    assert script.checkpoint(number).reason == reason
    assert f"ABORTED chk-{number} of job: {reason}" in capsys.readouterr().out
    assert [checkpoint.id for checkpoint in script.coordinator().state.retained] == [number + 1], (
        "the stage is saved all the same"
    )


# -- starting from one -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(script: Script, tmp_path: Path) -> str:
    """A savepoint with a stage of five rows, and a value."""
    with script.attempt() as job:
        job.value("count").set(7)
        number = ask(script, tmp_path / "saved")
        stage(job, "first", rows=5)
    return place(script, number)


def test_another_job_starts_from_a_savepoint(script: Script, saved: str, capsys: CaptureFixture) -> None:
    """Stages belong to their run; what is kept becomes its own."""
    with script.attempt(job_id="other", restore=saved) as job:
        assert job.value("count").get() == 7
        assert job.restored
        above = job.restored.id
        job.checkpoint()
    other = LocalStore(str(script.root)).list("jobs/other/job")
    assert all(int(call.key.split("chk-")[1].split("/")[0]) > above for call in other if "/chk-" in call.key)
    delete_savepoint(
        LocalStore(str(Path(saved.removeprefix("file://")).parent)),
        SavepointPointer.parse(saved),
        DISPOSAL,
        "me",
        utc_now(),
    )
    with pytest.raises(SavepointDisposed):
        open_checkpoint(saved, script.spark)
    with script.attempt(job_id="other") as job:
        assert job.value("count").get() == 7


def go_back(script: Script, base: Point, **more: object) -> None:
    token = Token(dag="", run=str(base), task="checkpoints restore")
    command = c.Restore(token=token, base=base, by="me", reason="to go back")
    script.coordinator().journal.append(replace(command, **more))  # type: ignore[arg-type]


def test_own_job_continues_from_a_savepoint_without_computing(
    script: Script, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Its rows are brought into the history first; from then on nobody needs the target."""
    with script.failing() as job:
        number = ask(script, tmp_path / "saved")
        stage(job, "first", rows=5)
        job.checkpoint()
        await_completed(script, number)  # a script that fails waits for no copy
    script.lose_beats()
    go_back(script, Point(id=number))
    again = script.recomputes("first")
    with script.failing() as job:
        assert stage(job, "first", rows=5) == 5
        job.checkpoint()
    assert not again()
    said = capsys.readouterr().out
    assert f"chk-{number} is a savepoint of this job. Copying" in said
    assert f"reused, 5 rows of chk-{number}," in said
    state = script.coordinator().state
    assert reused_stages(state, state.attempts[-1], state.runs[-1].key)
    shutil.rmtree(tmp_path / "saved")
    script.lose_beats()
    with script.attempt() as job:
        assert stage(job, "first", rows=5) == 5
    assert not again()


def test_savepoint_between_parts_is_restored_with_those_that_it_holds(
    script: Script, tmp_path: Path, capsys: CaptureFixture
) -> None:
    numbers, computed = list[int](), list[int]()

    def attempt(job: CheckpointedJob, breaks: int) -> list[int]:
        def part(number: int) -> DataFrame:
            computed.append(number)
            if breaks == number:
                await_completed(script, numbers[0])  # a script that fails waits for no copy
                raise Broken
            if breaks - 2 == number:
                parts(job).checkpointer.await_in_flight()  # else the barrier before could serve it still
                numbers.append(ask(script, tmp_path / "saved"))
            return job.spark.range(number, number + 1)

        return sorted(row.id for row in job.stage("rows", part, parts=range(5)).collect())

    with script.failing() as job:
        attempt(job, breaks=3)
    script.lose_beats()
    go_back(script, Point(id=numbers[0]))
    with script.failing() as job:
        assert attempt(job, breaks=-9) == list(range(5))
    assert computed == [0, 1, 2, 3, *range(2, 5)], "the savepoint holds two parts"
    assert f"2 of 5 parts reused, 2 rows of chk-{numbers[0]}" in capsys.readouterr().out


def test_heartbeat_goes_on_while_the_driver_copies_its_states(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GiB take longer than anybody waits for a still beat, and a fence or a stop must not wait for them."""
    monkeypatch.setenv(VARIABLE, "0.1")
    with script.failing() as job:
        number = ask(script, tmp_path / "saved")
        stage(job, "first")
        await_completed(script, number)
    script.lose_beats()
    go_back(script, Point(id=number))
    seen: list[Beat | None] = []

    def copy_slowly(*args: Any) -> None:
        store, keys, state = LocalStore(script.root), Keys(History("job").prefix), script.coordinator().state
        key, before = keys.attempt_beat(state.last_epoch), state.n
        wait_until(lambda: (beat := read_beat(store, key)) and beat.counter > 2 and beat.activity, say="no beat")
        script.coordinator().trigger(Request(token="another", timeout_s=60.0, origin="task"))
        wait_until(lambda: begun[0].journal.state.n > before, say="nobody looks at the journal")
        seen.append(read_beat(store, key))
        copy_all(*args)

    monkeypatch.setattr(copies, "copy_all", copy_slowly)
    begun: list[Attempt] = []

    def begin(*args: Any) -> Attempt:
        begun.append(start.begin(*args))
        return begun[-1]

    monkeypatch.setattr(attempt_run, "begin", begin)
    with script.attempt() as job:
        stage(job, "first")
    assert [(beat.activity, beat.attached_at) for beat in seen if beat] == [(f"copying chk-{number}", "")]


def test_driver_that_cannot_read_its_states_ends_its_attempt(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with script.failing() as job:
        number = ask(script, tmp_path / "saved")
        stage(job, "first")
        await_completed(script, number)
    script.lose_beats()
    go_back(script, Point(id=number))

    def copy_badly(*_: Any) -> None:
        raise Damaged("half of it is missing")

    monkeypatch.setattr(copies, "copy_all", copy_badly)
    with pytest.raises(Damaged), script.attempt():
        raise AssertionError
    assert script.coordinator().state.attempts[-1].outcome == "failed"


def test_restored_states_get_the_names_that_the_restore_gave(script: Script) -> None:
    with script.failing() as job:
        job.value("count").set(7)
        stage(job, "first", rows=5)
        job.checkpoint()
    script.lose_beats()
    newest = script.coordinator().state.retained[-1].id
    go_back(script, Point(id=newest), rename={"count": "total", "first": "clean"})
    again = script.recomputes("clean")
    with script.attempt() as job:
        total = job.value("total")
        stage(job, "clean", rows=5)
        assert total.get() == 7
        job.checkpoint()
    assert not again()
    names = [state.uid for state in script.coordinator().state.retained[-1].states]
    assert names == ["clean", "total"]


# -- what is left behind -----------------------------------------------------------------------------------------------


def test_completed_savepoint_is_published_by_the_next_attempt(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(journal_writer, "publish_due", lambda _: ())
        with script.failing() as job:
            number = ask(script, tmp_path / "saved")
            stage(job, "first")
            await_completed(script, number)
    assert not script.checkpoint(number).published
    script.lose_beats()
    with script.attempt() as job:
        stage(job, "first")
    assert script.checkpoint(number).published
    assert open_checkpoint(place(script, number), script.spark)["first"].count() == 3


def test_files_of_an_aborted_savepoint_are_deleted_by_the_next_attempt(script: Script, tmp_path: Path) -> None:
    with script.failing() as job:
        number = ask(script, tmp_path / "saved")
        script.coordinator().abort(number, "changed my mind")
        left = Path(place(script, number).removeprefix("file://")) / "state" / "first"
        left.mkdir(parents=True)
        (left / "part-0").write_text("rows")
        wait_until(lambda: not parts(job).attempt.journal.state.pending, say="the watch has not seen it")
    script.lose_beats()
    with script.attempt() as job:
        stage(job, "first")
    assert not left.exists()
