"""A checkpoint between two starts holds the query that is not started yet where it stands. Runs on Linux."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.integration.runtime.savepoint_requests import ask, found, whole
from tests.support.runs import Home, Running
from tests.support.streams import add_files, expected, rows_in
from tests.support.waiting import wait_until


def start(job: CheckpointedJob, folder: Path, *uids: str, to: str = "") -> None:
    """Start queries, one after the other, and wait for each."""
    for uid in uids:
        rows = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{folder}/in")
        writer = rows.writeStream.format("parquet").option("path", f"{folder}/{to}{uid}").trigger(availableNow=True)
        job.start_query(uid, writer).awaitTermination()


def between_the_starts(script: Script, folder: Path) -> int:
    """Take a checkpoint after ``one`` and before ``two``, and let the attempt fail there. Return its id."""
    with script.failing() as job:
        start(job, folder, "one")
        job.checkpoint()
        return script.coordinator().state.newest_first()[0].id


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(False, id="in no checkpoint"),
        # one whose sink is gone is in an older checkpoint, too: below
        pytest.param(True, id="in an older checkpoint", marks=pytest.mark.slow),
    ],
)
def test_job_goes_back_to_a_checkpoint_between_two_starts(script: Script, tmp_path: Path, known: bool) -> None:
    """What the second query has written since the checkpoint before is not taken out, nor written again."""
    if known:
        add_files(tmp_path / "in", 0)
        with script.attempt() as job:
            start(job, tmp_path, "one", "two")
    add_files(tmp_path / "in", 0, 1, 2)
    with script.failing() as job:
        start(job, tmp_path, "one", "two")
    assert len(script.coordinator().state.newest_first()) == int(known)
    add_files(tmp_path / "in", 3)
    number = between_the_starts(script, tmp_path)
    held = script.coordinator().read_seal(script.checkpoint(number)).states
    assert {uid: state.query.batch for uid, state in held.items() if state.query} == {"one": 3, "two": 2}
    change.restore(LocalStore(script.root), "job", None, change.RestoreSource(str(number)), change.Approval(yes=True))
    with script.attempt() as job:
        start(job, tmp_path, "one", "two")
    for uid in ("one", "two"):
        assert rows_in(tmp_path / uid) == expected(4)


def test_another_job_starts_from_a_checkpoint_between_two_starts(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0)
    with script.failing() as job:
        start(job, tmp_path, "one", "two")
    number = between_the_starts(script, tmp_path)
    coordinator = script.coordinator()
    pointer = str(coordinator.keys.pointer(f"file://{script.root}", number))
    add_files(tmp_path / "in", 1)
    with script.attempt(job_id="other", restore=pointer) as job:
        start(job, tmp_path, "one", "two", to="fork-")
    for uid in ("one", "two"):
        assert rows_in(tmp_path / f"fork-{uid}") == expected(2)[len(expected(1)) :]


def test_query_whose_sink_is_gone_costs_no_checkpoint_but_one(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script does not start it any more."""
    add_files(tmp_path / "in", 0, 1)
    with script.attempt() as job:
        start(job, tmp_path, "one", "two")
    add_files(tmp_path / "in", 2)
    with script.failing() as job:
        start(job, tmp_path, "one", "two")
    torn = script.coordinator().state.query("two")
    assert torn
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "two" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "two" / "_spark_metadata" / "0").write_text("torn")
    number = between_the_starts(script, tmp_path)
    (held_as_before,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("[CKP147]"))
    assert "cannot be read where it stands" in held_as_before
    held = script.coordinator().read_seal(script.checkpoint(number)).states["two"].query
    assert held
    assert held.batch == 1


def held_at_the_end(script: Script, folder: Path, *uids: str, **options: Any) -> set[str]:
    """Run the job with one more file, and return the queries that its last checkpoint holds."""
    add_files(folder / "in", len(list((folder / "in").glob("*"))))
    with script.attempt(**options) as job:
        start(job, folder, *uids)
    (newest, *_) = script.coordinator().state.newest_first()
    return set(script.coordinator().read_seal(newest).states)


def test_query_that_was_dropped_is_in_no_later_checkpoint(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its place stays in the journal: if the script starts it again, it goes on there."""
    (tmp_path / "in").mkdir()
    assert held_at_the_end(script, tmp_path, "one", "two") == {"one", "two"}
    assert held_at_the_end(script, tmp_path, "one") == {"one", "two"}
    assert held_at_the_end(script, tmp_path, "one", allow_non_restored_state=["two"]) == {"one"}
    assert "dropped, as allow_non_restored_state says: query 'two'" in capsys.readouterr().out
    with script.attempt() as job:
        start(job, tmp_path, "one")
        assert not cast(Any, job)._run._queries.not_started()  # no drain waits for it
    assert held_at_the_end(script, tmp_path, "one") == {"one"}
    assert held_at_the_end(script, tmp_path, "one", "two") == {"one", "two"}
    assert rows_in(tmp_path / "two") == rows_in(tmp_path / "one") == expected(5)


def test_query_that_no_checkpoint_holds_is_dropped(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_files(tmp_path / "in", 0)
    with script.failing() as job:
        start(job, tmp_path, "one", "two")
    assert held_at_the_end(script, tmp_path, "one", allow_non_restored_state={"two": "drop"}) == {"one"}
    line = "not started in this run, and dropped, as allow_non_restored_state says: 'two'  [CKP427]"
    assert line in capsys.readouterr().out.splitlines()
    assert held_at_the_end(script, tmp_path, "one") == {"one"}


# -- a stop between two starts, with drivers ---------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Home, Running, Path]]:
    """Yield a job whose second driver stands between two starts, with a file that it holds there. Both queries have rows, which no
    checkpoint holds, and there is more to read.
    """
    home = Home(tmp_path / "two", "two.py")
    hold, arrived = home.folder / "hold", Path(f"{home.out}-in")
    home.env |= {"TWO_HOLD": str(hold), "TWO_FOREVER": "1"}
    add_files(arrived, 0, 1)
    with home.started() as first:
        both = ("one", "two")
        wait_until(lambda: all(rows_in(home.out / uid) == expected(2) for uid in both), 120, first.said)
        first.send(signal.SIGKILL)
        first.wait()
    hold.touch()
    add_files(arrived, 2)
    with home.started() as second:
        wait_until(lambda: "BETWEEN" in second.said(), 120, second.said)
        yield home, second, hold


def ends_exactly(home: Home, savepoint: int) -> None:
    """Restore the savepoint in place, and run the job until all is read."""
    source = change.RestoreSource(found(home, savepoint).target or "")
    change.restore(home.store, "two", None, source, change.Approval(yes=True))
    del home.env["TWO_FOREVER"]
    add_files(Path(f"{home.out}-in"), 3)
    ended = home.run()
    assert ended.code == 0, ended.log
    for uid in ("one", "two"):
        assert rows_in(home.out / uid) == expected(4)


@pytest.mark.slow
def test_savepoint_of_a_stop_between_two_starts_is_restored(held: tuple[Home, Running, Path]) -> None:
    home, running, hold = held
    number = ask(home, running, "suspend_savepoint")
    ended = running.wait()
    assert ended.code == 79, ended.log
    assert "query 'two' is not started in this attempt. The savepoint holds it where it stands" in ended.log, ended.log
    assert whole(home, number) == {"one", "two"}
    hold.unlink()
    ends_exactly(home, number)


@pytest.mark.slow
def test_drain_waits_for_the_next_start(held: tuple[Home, Running, Path]) -> None:
    home, running, hold = held
    number = ask(home, running, "terminate_savepoint")
    wait_until(lambda: rows_in(home.out / "one") == expected(3), 120, running.said)
    time.sleep(5)
    assert found(home, number).status == PENDING, running.said()
    hold.unlink()
    ended = running.wait()
    assert ended.code == 79, ended.log
    assert rows_in(home.out / "two") == expected(3)
    ends_exactly(home, number)
