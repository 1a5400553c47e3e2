"""Writes of a script to file sinks: published with their checkpoint, not done again by a retry, replaced if they are computed again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.coordinator import closing
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import (
    CommitFailed,
    InvalidConfig,
    KindChanged,
    NonRestoredState,
    SinkMoved,
    StoreUnavailable,
    WrongUse,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.spark import (
    CheckpointedJob,
    FileSink,
    OpenSink,
    Prepared,
    Sink,
    SinkContext,
    SinkWriter,
)
from airflow_checkpoint_provider.spark.attempt import leaving
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Launch, Script
from tests.support.launches import Launches
from tests.support.parts import parts

CaptureFixture = pytest.CaptureFixture[str]


def rows_of(spark: SparkSession, path: Path) -> list[int]:
    """The rows that a reader finds who lists the folder."""
    if not any(path.glob("*.parquet")):
        return []
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


def staged(path: Path) -> list[Path]:
    return list(path.glob("_checkpoint-staging/*"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_rows_are_visible_after_the_checkpoint_and_not_before(script: Script, out: Path) -> None:
    with script.attempt() as job:
        sink = job.sink("report", FileSink(out))
        sink.write(job.spark.range(3))
        assert rows_of(script.spark, out) == []
        job.checkpoint()
        assert rows_of(script.spark, out) == [0, 1, 2]
        sink.write(job.spark.range(3, 5))
    assert rows_of(script.spark, out) == [0, 1, 2, 3, 4]
    assert not staged(out)
    assert script.coordinator().state.sink("report").uncommitted == 0


def test_rows_of_an_attempt_without_a_checkpoint_are_never_visible(script: Script, out: Path) -> None:
    with script.failing() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3))
    assert rows_of(script.spark, out) == []
    with script.attempt() as job:
        sink = job.sink("report", FileSink(out))
        assert not staged(out)
        sink.write(job.spark.range(4))
    assert rows_of(script.spark, out) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "mode", ["append", pytest.param("overwrite", marks=pytest.mark.slow)]
)  # the one below overwrites
def test_retry_does_not_write_again_what_its_checkpoint_holds(
    script: Script, out: Path, mode: str, capsys: CaptureFixture
) -> None:
    def run(job: CheckpointedJob) -> None:
        clean = job.stage("clean", job.spark.range(3))
        sink = job.sink("report", FileSink(out, mode=mode))
        sink.write(clean)
        job.checkpoint()

    with script.failing() as job:
        run(job)
    capsys.readouterr()
    with script.attempt() as job:
        run(job)
    said = capsys.readouterr().out
    assert "sink 'report': write 1 of this run is committed already (3 rows); not done again  [CKP151]" in said
    assert "[CKP150]" not in said
    assert rows_of(script.spark, out) == [0, 1, 2]


@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.slow), "overwrite"])  # the one above appends
def test_rows_that_a_retry_computes_again_replace_the_earlier_ones(
    script: Script, out: Path, mode: str, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        sink = job.sink("report", FileSink(out, mode=mode))
        sink.write(job.stage("clean", job.spark.range(3)))
        job.checkpoint()
    script.change("second")
    with script.attempt() as job:
        sink = job.sink("report", FileSink(out, mode=mode))
        sink.write(job.stage("clean", job.spark.range(10, 12)))
    assert rows_of(script.spark, out) == [10, 11]
    assert "write 1 of this run is done again: what it is built on was computed again. Its 3 rows are replaced" in (
        capsys.readouterr().out
    )


def test_second_write_goes_on_where_the_first_was_held(script: Script, out: Path) -> None:
    def run(job: CheckpointedJob, writes: int) -> None:
        sink = job.sink("report", FileSink(out))
        for number in range(writes):
            sink.write(job.spark.range(number * 10, number * 10 + 2))
            job.checkpoint()

    with script.failing() as job:
        run(job, 2)
    with script.attempt() as job:
        run(job, 3)
    assert rows_of(script.spark, out) == [0, 1, 10, 11, 20, 21]


def test_run_that_writes_less_often_leaves_what_it_has_written(
    script: Script, out: Path, capsys: CaptureFixture
) -> None:
    def run(job: CheckpointedJob, rows: Collection[int]) -> None:
        sink = job.sink("report", FileSink(out))
        for number in rows:
            sink.write(job.spark.range(number, number + 1))

    with script.failing() as job:
        run(job, [1, 2, 3])
        job.checkpoint()
    script.change("second")
    with script.attempt() as job:
        run(job, [2, 3])
    assert rows_of(script.spark, out) == [2, 3]
    said = capsys.readouterr().out
    assert (
        "holds 1 write of earlier attempts of this run that the script has not done. The next checkpoint takes" in said
    )
    assert "sink 'report': the rows of 1 write are taken out of " in said


def test_sink_with_rows_of_the_run_is_opened_or_the_job_decides(script: Script, out: Path) -> None:
    with script.failing() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(1))
        job.checkpoint()
    with pytest.raises(NonRestoredState, match="Open it: what the script has not written"), script.attempt():
        pass
    with script.attempt() as job:
        job.sink("report", FileSink(out))
    assert rows_of(script.spark, out) == []


def test_sink_keeps_its_rows_under_another_name(script: Script, out: Path, capsys: CaptureFixture) -> None:
    def run(job: CheckpointedJob, name: str) -> None:
        job.sink(name, FileSink(out)).write(job.spark.range(2))

    with script.failing() as job:
        run(job, "report")
        job.checkpoint()
    with pytest.raises(NonRestoredState, match="--from latest --rename report=rapport"), script.attempt() as job:
        run(job, "rapport")
    source = change.RestoreSource("latest", rename={"report": "rapport"})
    change.restore(script.coordinator().store, "job", None, source, change.Approval(yes=True))
    with script.attempt() as job:
        run(job, "rapport")
    assert rows_of(script.spark, out) == [0, 1]
    assert "sink 'rapport': write 1 of this run is committed already" in capsys.readouterr().out


def test_next_run_appends(script: Script, out: Path) -> None:
    for number in range(2):
        with script.attempt() as job:
            job.sink("report", FileSink(out)).write(job.spark.range(number, number + 1))
    assert rows_of(script.spark, out) == [0, 1]
    held = script.coordinator().state.sink("report")
    assert (held.version, held.due, held.confirmed) == (2, 2, 2)


def test_next_run_overwrites(script: Script, out: Path) -> None:
    for number in range(2):
        with script.attempt() as job:
            job.sink("report", FileSink(out, mode="overwrite")).write(job.spark.range(number, number + 1))
    assert rows_of(script.spark, out) == [1]


def test_cleared_run_replaces_the_rows_of_its_earlier_pass(
    script: Script, launched: Launch, launches: Launches, out: Path
) -> None:
    for generation, rows in enumerate((3, 2)):
        with launched(launches.plan(generation=generation)) as job:
            job.sink("report", FileSink(out)).write(job.spark.range(rows))
    assert rows_of(script.spark, out) == [0, 1]


def test_cleared_run_replaces_its_rows_though_the_root_was_moved(
    script: Script, launched: Launch, launches: Launches, out: Path, tmp_path: Path
) -> None:
    with launched() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3))
    launches.store = LocalStore((tmp_path / "checkpoints").rename(tmp_path / "moved"))
    with launched(launches.plan(generation=1)) as job:
        job.sink("report", FileSink(out)).write(job.spark.range(2))
    assert rows_of(script.spark, out) == [0, 1]


def test_partitions_and_formats_are_kept(script: Script, out: Path) -> None:
    with script.attempt() as job:
        frame = job.spark.range(4).selectExpr("id", "nullif(id % 2, 1) AS _half")
        job.sink("report", FileSink(out, format="json", partition_by=["_half"])).write(frame)
    assert sorted(path.name for path in out.glob("_half=*")) == ["_half=0", "_half=__HIVE_DEFAULT_PARTITION__"]
    assert script.spark.read.json(str(out)).count() == 4


def test_write_without_rows_publishes_a_schema(script: Script, out: Path) -> None:
    with script.attempt() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(0))
    assert script.spark.read.parquet(str(out)).columns == ["id"]


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "ignore"}, {"format": "delta"}, {"partition_by": "day"}, {"partition_by": [".day"]}, {"path": ""}],
)
def test_wrong_option_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        FileSink(**{"path": "/data/out", **wrong})


def test_two_sinks_with_one_target_are_refused(script: Script, out: Path) -> None:
    with script.failing() as job:
        job.sink("a", FileSink(out))
        with pytest.raises(WrongUse, match="sink 'b' and sink 'a' write to one target"):
            job.sink("b", FileSink(out))


def test_other_values_than_sinks_and_frames_are_refused(script: Script, out: Path) -> None:
    with script.failing() as job:
        with pytest.raises(WrongUse, match=r"job\.sink was given str"):
            job.sink("a", str(out))  # type: ignore[arg-type]
        with pytest.raises(WrongUse, match="streaming DataFrame"):
            job.sink("b", FileSink(out)).write(job.spark.readStream.format("rate").load())


def test_stage_of_the_same_name_is_refused(script: Script, out: Path) -> None:
    with script.failing() as job:
        job.stage("report", job.spark.range(1))
    with script.failing() as job, pytest.raises(KindChanged):
        job.sink("report", FileSink(out))


# -- going back --------------------------------------------------------------------------------------------------------


def after_three_runs(script: Script, out: Path, *, rewind_sink: bool) -> None:
    """Three runs append, then a person goes back to the checkpoint of the first one."""
    for number in range(3):
        with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll())) as job:
            job.sink("report", FileSink(out)).write(job.spark.range(number, number + 1))
    source = change.RestoreSource("chk-1", rewind_sink=rewind_sink)
    change.restore(script.coordinator().store, "job", None, source, change.Approval(yes=True))


def test_rows_of_later_runs_are_taken_out_on_the_way_back(script: Script, out: Path, capsys: CaptureFixture) -> None:
    after_three_runs(script, out, rewind_sink=True)
    for _ in range(2):
        with script.failing() as job:
            job.sink("report", FileSink(out))
            assert rows_of(script.spark, out) == [0]
    assert "sink 'report': 2 writes of later runs (alone-2, alone-3) were taken out of " in capsys.readouterr().out
    with script.attempt() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(10, 11))
    assert rows_of(script.spark, out) == [0, 10]
    assert script.coordinator().state.sink("report").version == 4, "no version is used twice"


def test_rows_that_were_taken_out_are_said_to_be_missing_where_the_job_goes_to_their_checkpoint_again(
    script: Script, out: Path, capsys: CaptureFixture
) -> None:
    after_three_runs(script, out, rewind_sink=True)
    with script.failing() as job:
        job.sink("report", FileSink(out))
    capsys.readouterr()
    store, source = script.coordinator().store, change.RestoreSource("chk-3", rewind_sink=True)
    said = "\n".join(change.restore(store, "job", None, source, change.Approval(yes=True)).lines or ())
    assert "sink 'report': the job went back to before this checkpoint once" in said
    with script.failing() as job:
        job.sink("report", FileSink(out))
    assert (
        "write 1 of run alone-3 was aborted, taken out or replaced since its checkpoint. This run does not do it again: 1 row"
        in (capsys.readouterr().out)
    )
    assert rows_of(script.spark, out) == [0]


def test_rows_from_before_the_history_was_closed_stay(
    script: Script, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runs are over for good: nobody runs them again. A run that starts from nothing goes back behind none of them."""
    for number in (0, 1):
        with script.attempt() as job:
            job.sink("report", FileSink(out)).write(job.spark.range(number, number + 1))
    with monkeypatch.context() as patch:
        patch.setattr("airflow_checkpoint_provider.protocol.lifetime._needed", lambda *_: None)
        closing.close(coordinator := script.coordinator(), c.CloseHistory(reason="given up", now=utc_now()))
    assert coordinator.state.closed
    keeping = CheckpointConfig(retention=KeepAll())
    for number in (2, 3):
        with script.attempt(checkpointing=keeping) as job:
            job.sink("report", FileSink(out)).write(job.spark.range(number, number + 1))
    first = script.coordinator().state.newest_first()[-1]
    source = change.RestoreSource(f"chk-{first.id}", rewind_sink=True)
    change.restore(script.coordinator().store, "job", None, source, change.Approval(yes=True))
    with script.attempt() as job:
        job.sink("report", FileSink(out))
    assert rows_of(script.spark, out) == [0, 1, 2]


def test_job_that_goes_back_is_refused_if_nobody_allows_to_take_rows_out(script: Script, out: Path) -> None:
    after_three_runs(script, out, rewind_sink=False)
    with (
        script.failing() as job,
        pytest.raises(
            SinkMoved,
            match=r"2 writes of later runs.*twice; with mode=.overwrite.*restore job --from chk-1 --rewind-sink`",
        ),
    ):
        job.sink("report", FileSink(out))
    assert rows_of(script.spark, out) == [0, 1, 2]


# -- commits that do not come about ------------------------------------------------------------------------------------


def write_without_commit(job: CheckpointedJob, out: Path, error: Exception | None = None) -> None:
    """The target takes the rows, and no commit."""
    sink = job.sink("report", FileSink(out))

    def commit(_: Transaction) -> bool:
        raise error or StoreUnavailable("the target does not answer, by plan")

    parts(job)._sinks.opened["report"].opened.commit = commit  # type: ignore[method-assign, assignment]
    sink.write(job.spark.range(3))


def test_next_attempt_commits_first_what_a_completed_checkpoint_holds(
    script: Script, out: Path, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        write_without_commit(job, out)
        with pytest.raises(CommitFailed):
            job.checkpoint()
    assert "[CKP154]" in capsys.readouterr().out
    assert rows_of(script.spark, out) == []
    assert script.coordinator().state.sink("report").uncommitted == 1
    with script.attempt() as job:
        job.sink("report", FileSink(out))
        assert rows_of(script.spark, out) == [0, 1, 2]


@pytest.mark.parametrize("error", [None, ValueError("a sink of the author's own")])
def test_job_does_not_end_well_without_its_commits(script: Script, out: Path, error: Exception | None) -> None:
    why = "1 write of completed checkpoints could not be committed"
    with pytest.raises(CommitFailed, match=why), script.attempt() as job:
        write_without_commit(job, out, error)
    assert script.coordinator().state.attempts[-1].outcome == "failed"


def write_twice(job: CheckpointedJob, sink: SinkWriter) -> None:
    sink.write(job.spark.range(3))
    sink.write(job.spark.range(3, 5))


def test_script_that_fails_while_its_rows_are_committed_ends_by_itself(
    script: Script, out: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last entry is its own: no other attempt has replaced it, and the exit code is that of its error."""
    left = list[int]()
    monkeypatch.setattr(leaving, "leave", lambda code, _: left.append(code))
    with script.failing() as job:
        sink, running = job.sink("report", FileSink(out)), parts(job)
        opened = running._sinks.opened["report"].opened
        commit = opened.commit

        def commit_later(transaction: Transaction) -> bool:
            assert running.attempt.leaving.written.wait(60)
            return commit(transaction)

        monkeypatch.setattr(opened, "commit", commit_later)
        write_twice(job, sink)
        assert running.checkpointer.checkpoint("two writes")
        running.checkpointer.await_in_flight()
        running._commits.begin()  # as the watch does each second
    committing = running._commits._running
    assert committing
    committing.result(60)
    assert not left
    assert rows_of(script.spark, out) == [0, 1, 2]
    assert "[CKP154]" not in capsys.readouterr().out
    with script.attempt() as job:
        write_twice(job, job.sink("report", FileSink(out)))
    assert rows_of(script.spark, out) == [0, 1, 2, 3, 4]


def test_rows_of_a_sink_that_the_script_does_not_open_any_more_are_not_lost(script: Script, out: Path) -> None:
    with script.failing() as job:
        write_without_commit(job, out)
        job.stage("next", job.spark.range(1))
    with pytest.raises(NonRestoredState, match="the script does not open it"), script.attempt():
        pass
    with script.attempt(allow_non_restored_state=["report"]):
        pass
    assert rows_of(script.spark, out) == []


def test_sink_of_ones_own_needs_four_methods(script: Script) -> None:
    rows: dict[str, int] = {}
    seen: set[str] = set()

    class Opened(OpenSink):
        def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
            rows[name] = df.count()
            return Prepared(rows=rows[name], bytes=0, content={"version": version})

        def commit(self, transaction: Transaction) -> bool:
            seen.add(transaction.name)
            return True

        def abort(self, names: Collection[str]) -> tuple[str, ...]:
            return tuple(seen & set(names))

        def position(self) -> str:
            return f"{len(seen)} writes"

    class Own(Sink):
        kind = "own"
        target = "a table"

        def open(self, context: SinkContext) -> OpenSink:
            assert (context.uid, context.run, context.attempt) == ("report", "alone-1", 1)
            return Opened()

    with script.attempt() as job:
        job.sink("report", Own()).write(job.spark.range(3))
        assert not seen
    assert sum(rows[name] for name in seen) == 3


def test_other_target_is_refused_while_the_old_one_waits_for_rows(
    script: Script, out: Path, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        write_without_commit(job, out)
        job.stage("next", job.spark.range(1))
    with script.failing() as job, pytest.raises(SinkMoved, match="Start the job once with the old target"):
        job.sink("report", FileSink(f"{out}-new"))
    with script.failing() as job:
        job.sink("report", FileSink(out))
    with script.attempt() as job:
        job.sink("report", FileSink(f"{out}-new")).write(job.spark.range(2))
    assert rows_of(script.spark, out) == [0, 1, 2]
    assert "[CKP155]" in capsys.readouterr().out


def test_checkpoint_before_a_sink_is_opened_confirms_nothing_of_it(script: Script, out: Path) -> None:
    with script.failing() as job:
        write_without_commit(job, out)
        job.stage("next", job.spark.range(1))
    with script.failing() as job:
        job.stage("other", job.spark.range(1))
        other = job.sink("other sink", FileSink(f"{out}-other"))
        other.write(job.spark.range(1))
        job.checkpoint()
    assert script.coordinator().state.sink("report").uncommitted == 1
    with script.attempt() as job:
        job.sink("report", FileSink(out))
        assert rows_of(script.spark, out) == [0, 1, 2]
        job.sink("other sink", FileSink(f"{out}-other"))


def test_rows_that_the_next_run_commits_are_those_of_their_own_run(script: Script, out: Path) -> None:
    """They are not replaced when the next run is computed again."""
    with script.failing() as job:
        write_without_commit(job, out)
        job.stage("next", job.spark.range(1))
    target = script.coordinator().pointer(1)
    for number in (10, 20):
        with script.failing(job_id="later", restore=str(target)) as job:
            job.sink("report", FileSink(out)).write(job.spark.range(number, number + 1))
            job.checkpoint()
        script.change(f"version {number}")
    assert rows_of(script.spark, out) == [0, 1, 2, 20]
