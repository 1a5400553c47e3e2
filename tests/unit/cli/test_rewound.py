"""``rewound``: what a query took out of its file sink is listed, put back or deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.file_sink.log import FileSinkLog
from airflow_checkpoint_provider.file_sink.rewinding import all_aside
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.sinks import FOLDER, folder_in, named_by, saved_at, sink_in, way_back, write_batch
from tests.unit.cli.conftest import Command
from tests.unit.cli.kafka_jobs import save

ALL = [f"day={batch}/part-0" for batch in range(4)]
ASIDE = "_rewound-2-def"
SECOND = "query/rows/3-abc"  # the location of the query that goes back once more


@pytest.fixture
def sinks(tmp_path: Path) -> LocalStore:
    """Return a store with a sink out of which two batches were taken, and in which one was written since."""
    store = LocalStore(str(tmp_path))
    for batch in range(4):
        write_batch(store, batch)
    sink = sink_in(store)
    sink.rewind(way_back(sink.plan_rewind(saved_at(store, 1, None), allowed=True), sink.next_number(3)))
    write_batch(store, sink.newest_batch() + 1)
    return store


def test_what_was_taken_out_is_listed(job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command) -> None:
    listed = checkpoints("rewound", f"{tmp_path}/{FOLDER}", "-o", "json")
    assert listed.code == 0
    (row,) = json.loads(listed.out)
    assert (row["folder"], row["job"], row["query"], row["batch"], row["files"]) == (ASIDE, "orders", "rows", 1, 2)
    assert ASIDE in checkpoints("rewound", f"file:{tmp_path}/{FOLDER}").out
    sinks.overwrite(f"{FOLDER}/_rewound-1-abc/day=7/part-0", b"rows")
    noted = checkpoints("rewound", f"{tmp_path}/{FOLDER}")
    assert (noted.code, len(noted.lines)) == (0, 2)
    assert "_rewound-1-abc has no manifest" in noted.err


def test_sink_out_of_which_nothing_was_taken_is_noted(job: Job, tmp_path: Path, checkpoints: Command) -> None:
    write_batch(LocalStore(str(tmp_path)), 0)
    listed = checkpoints("rewound", f"{tmp_path}/{FOLDER}")
    said = f"no query that went back took anything out of file://{tmp_path}"
    assert (listed.code, listed.out, listed.err) == (0, "", f"{said}/{FOLDER}\n")
    wrong = checkpoints("rewound", f"{tmp_path}/wrong")
    assert (wrong.code, wrong.out) == (0, "")
    assert wrong.err.startswith(f"{said}/wrong. It does not exist, or is empty")


def test_rows_are_put_back_while_no_query_runs(
    job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    command = ("rewound", f"{tmp_path}/{FOLDER}", "--put-back")
    refused = checkpoints(*command, "--yes")
    assert refused.code == 3
    assert "attempt 1 of orders runs" in refused.err
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"]
    job.end("failed")
    foreseen = checkpoints(*command, "--dry-run")
    assert foreseen.lines[0].startswith("PUT BACK 2 files")
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"]
    done = checkpoints(*command, "--yes")
    assert done.code == 0, done.err
    assert done.lines[-2].endswith(f"files that were written since are in {ASIDE}-after")
    assert named_by(sinks) == ALL
    assert [aside.name for aside in all_aside(folder_in(sinks))] == [f"{ASIDE}-after"]
    assert checkpoints(*command, "--yes").code == 0, "and back"
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"]


def saved(job: Job, sinks: LocalStore, *days: int) -> None:
    """Take checkpoints at which the newest file of the sink was that of these days, or there was none."""
    for day in days:
        newest = None if day < 0 else f"{sinks.uri}/{FOLDER}/day={day}/part-0"
        save(job, uid="rows", sink="parquet", newest_file=newest)


def test_rows_that_are_put_back_name_the_checkpoints_that_fit_them(
    job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    """The newest checkpoint is of the other branch. One that fits is mostly older than the rows, so the sink must be rewound."""
    saved(job, sinks, -1, 0, 2, 2, 20)
    job.end("failed")
    command = ("rewound", f"{tmp_path}/{FOLDER}", "--put-back")
    root = f"--root {job.store.uri[7:]}"
    fits = (
        f"before you start orders: `checkpoints {root} restore orders --from chk-5 --rewind-sink`. chk-5 is the newest"
    )
    foreseen = checkpoints(*command, "--dry-run")
    assert foreseen.lines[1].startswith(fits)
    assert foreseen.lines[1].endswith(
        "after its batch 5 is moved aside again, and written once more. Older ones that fit: chk-4, chk-3"
    )
    done = checkpoints(*command, "--yes")
    assert done.lines[-1] == foreseen.lines[1]
    again = checkpoints(*command, "--dry-run")
    assert "--from chk-6 --rewind-sink`. chk-6 is" in again.lines[1], "the rows that were written since"
    assert again.lines[1].endswith("Older ones that fit: chk-3")


def test_rows_that_no_checkpoint_fits_are_put_back_with_a_warning(
    job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    saved(job, sinks, 3, 20)
    job.store.delete([job.keys.seal(2)])  # nobody can restore it
    job.end("failed")
    for how in ("--dry-run", "--yes"):
        done = checkpoints("rewound", f"{tmp_path}/{FOLDER}", "--put-back", how)
        assert done.code == 0
        assert "no checkpoint that is still there fits the rows, so query 'rows' would be refused (CKP401)" in done.out


def test_what_was_taken_out_is_deleted(job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command) -> None:
    job.end("failed")
    command = ("rewound", f"{tmp_path}/{FOLDER}")
    assert checkpoints(*command, "another", "--delete", "--yes").code == 4
    assert checkpoints(*command, ASIDE, "--delete", "--put-back", "--yes").code == 2
    assert checkpoints(*command, ASIDE, "--delete", "--yes").code == 0
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"]
    assert not list(tmp_path.glob(f"{FOLDER}/_rewound*"))
    assert checkpoints(*command, "--delete", "--yes").code == 4


def went_back_twice(job: Job, sinks: LocalStore) -> None:
    """Take out a second folder of the sink, which holds files that the first one is put back with. No query runs afterwards."""
    sink = sink_in(sinks)
    sink.rewind(way_back(sink.plan_rewind(saved_at(sinks, 0, None), allowed=True), sink.next_number(20), SECOND))
    job.end("failed")


def deletes_a_file(job: Job, sinks: LocalStore) -> None:
    sinks.delete([f"{FOLDER}/{ASIDE}/{ALL[3]}"])
    job.end("failed")


def begins_to_go_back(job: Job, sinks: LocalStore) -> None:
    """Put a manifest, and no more: the log still names the files."""
    sink, aside = sink_in(sinks), all_aside(folder_in(sinks))[0]
    manifest = replace(aside.manifest, number=sink.next_number(20))
    sinks.overwrite(f"{FOLDER}/_rewound-3-abc/_manifest.json", manifest.encoded.encode())
    job.end("failed")


@pytest.mark.parametrize(
    ("before", "command", "why"),
    [
        (went_back_twice, (ASIDE, "--put-back"), "_rewound-3-abc holds it: put that back first"),
        (went_back_twice, ("_rewound-3-abc", "--delete"), f"{ASIDE} was taken out before"),
        (deletes_a_file, ("--put-back",), "somebody deleted it"),
        (begins_to_go_back, ("--put-back",), "has begun to go back"),
        (begins_to_go_back, ("_rewound-3-abc", "--delete"), "has begun to go back"),
    ],
)
def test_dry_run_is_refused_if_the_command_would_be(
    job: Job,
    sinks: LocalStore,
    tmp_path: Path,
    checkpoints: Command,
    before: Callable[[Job, LocalStore], None],
    command: tuple[str, ...],
    why: str,
) -> None:
    before(job, sinks)
    there = sorted(tmp_path.rglob("*"))
    foreseen, done = (checkpoints("rewound", f"{tmp_path}/{FOLDER}", *command, how) for how in ("--dry-run", "--yes"))
    assert (foreseen.code, foreseen.err) == (done.code, done.err)
    assert done.code != 0
    assert why in done.err
    assert sorted(tmp_path.rglob("*")) == there


def test_dry_run_of_a_deletion_of_all_folders_is_not_refused(
    job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    """The older one goes first, so it does not need the newer one any more."""
    went_back_twice(job, sinks)
    foreseen, done = (checkpoints("rewound", f"{tmp_path}/{FOLDER}", "--delete", how) for how in ("--dry-run", "--yes"))
    assert (foreseen.code, done.code) == (0, 0)
    assert all_aside(folder_in(sinks)) == []


def test_job_of_another_root_may_run_so_nothing_is_changed(
    sinks: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    (tmp_path / "lake").mkdir()
    refused = checkpoints("rewound", f"{tmp_path}/{FOLDER}", "--put-back", "--yes")
    assert refused.code == 4
    assert "the job 'orders', which writes there, has no history" in refused.err
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"]


def test_job_that_is_started_meanwhile_is_told(
    job: Job, sinks: LocalStore, tmp_path: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.end("failed")

    put_back = rewinding.put_back

    def started(log: FileSinkLog, *arguments: object) -> object:
        job.start(try_number=2)
        return put_back(log, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rewinding, "put_back", started)
    told = checkpoints("rewound", f"{tmp_path}/{FOLDER}", "--put-back", "--yes")
    assert told.code == 3
    assert "was started while its sink was changed" in told.err
    assert [aside.name for aside in all_aside(folder_in(sinks))] == [ASIDE], "it can be repeated"
    assert named_by(sinks) == [*ALL[:2], "day=20/part-0"], "readers have seen nothing"


@pytest.mark.parametrize("sink", ["hdfs://lake/out", "out", "s3://lake/out", "/"])
def test_sink_that_cannot_be_reached_is_refused(job: Job, sink: str, checkpoints: Command) -> None:
    refused = checkpoints("rewound", sink)
    assert refused.code == 2
    assert "a file sink" in refused.err or "cannot be reached like" in refused.err
