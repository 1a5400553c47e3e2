"""``verify``: whole, damaged, or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli.main import main
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import Pointer, file_set_path
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acknowledgements import acknowledgement, driver, stage
from tests.support.footers import with_footers
from tests.support.parquet import flipped, parquet_file
from tests.support.recorded import Recorded
from tests.support.saved import Saved
from tests.unit.cli.conftest import Command


def pointer(running: Recorded, number: int) -> str:
    return str(Pointer(running.store.uri, running.keys.prefix, number))


def test_verify_of_a_complete_checkpoint(running: Recorded, checkpoints: Command) -> None:
    done = checkpoints("verify", pointer(running, 3))
    assert (done.code, done.lines) == (
        0,
        [
            f"{pointer(running, 3)} is complete: sealed 2026-11-21 02:14, 3 states, 61.2 KiB, all 6 files there, sizes match"
        ],
    )
    assert json.loads(checkpoints("verify", pointer(running, 3), "-o", "json").out)["files"] == 6


@pytest.mark.parametrize("named", [["chk-3"], ["3"], ["scheduled__2026-11-20", "chk-3"]])
def test_verify_takes_a_job_and_an_id_as_show_does(running: Recorded, checkpoints: Command, named: list[str]) -> None:
    assert checkpoints("verify", running.job, *named) == checkpoints("verify", pointer(running, 3))


def test_verify_of_a_job_without_an_id_asks_for_one(running: Recorded, checkpoints: Command) -> None:
    for named in ([], ["scheduled__2026-11-20"]):
        done = checkpoints("verify", running.job, *named)
        assert done.code == 2
        assert "Write which checkpoint of it" in done.err
    assert "means nothing" in checkpoints("verify", pointer(running, 3), "chk-3").err


@pytest.mark.parametrize(
    ("number", "why"), [("chk-1", "it was deleted"), ("chk-4", "waits for the driver"), ("chk-9", "no such checkpoint")]
)
def test_verify_of_a_jobs_checkpoint_that_is_not_there_says_why(
    running: Recorded, checkpoints: Command, number: str, why: str
) -> None:
    done = checkpoints("verify", running.job, number)
    assert (done.code, done.out) == (4, "")
    assert why in done.err


def test_verify_finds_the_root_by_the_pointer(
    running: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["verify", pointer(running, 3)]) == 0


def test_verify_with_a_missing_file_exits_with_1(running: Recorded, root: Path, checkpoints: Command) -> None:
    next(root.rglob("part-0.parquet")).unlink()
    done = checkpoints("verify", pointer(running, 3))
    assert (done.code, done.out) == (1, "")
    assert "part-0.parquet is missing" in done.err


@pytest.mark.parametrize(("number", "code"), [(1, 4), (4, 4), (9, 4)], ids=["deleted", "pending", "never made"])
def test_verify_of_an_absent_checkpoint_exits_with_4(
    running: Recorded, checkpoints: Command, number: int, code: int
) -> None:
    assert checkpoints("verify", pointer(running, number)).code == code


def test_verify_without_a_pointer_exits_with_2(checkpoints: Command) -> None:
    assert checkpoints("verify", "chk-7").code == 2


@pytest.fixture
def savepoint(tmp_path: Path) -> Saved:
    """Elsewhere; its history cannot be read from here."""
    saved = Saved(LocalStore(tmp_path / "savepoints"))
    saved.publish()
    return saved


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
def test_verify_of_a_savepoint_needs_no_history(savepoint: Saved, checkpoints: Command, end: str) -> None:
    done = checkpoints("verify", f"{savepoint.pointer}{end}")
    summary = "savepoint 1 of flights.delays, 1 state, 38 B, all 2 files there, sizes match"
    assert (done.code, done.lines) == (0, [f"{savepoint.pointer} is complete: {summary}"])
    data = json.loads(checkpoints("verify", str(savepoint.pointer), "-o", "json").out)
    assert data == {"pointer": str(savepoint.pointer), "states": 1, "files": 2, "bytes": 38, "completed_at": None}


def test_verify_finds_a_savepoint_without_root(savepoint: Saved) -> None:
    assert main(["verify", str(savepoint.pointer)]) == 0


def test_verify_of_a_damaged_absent_or_disposed_savepoint_fails(savepoint: Saved, checkpoints: Command) -> None:
    savepoint.target.delete([f"{savepoint.pointer.name}/state/s1/1-n0nce/part-00000.zstd.parquet"])
    done = checkpoints("verify", str(savepoint.pointer))
    assert done.code == 1
    assert "part-00000.zstd.parquet is missing" in done.err
    assert checkpoints("verify", f"{savepoint.pointer}0").code == 4
    savepoint.dispose()
    done = checkpoints("verify", str(savepoint.pointer))
    assert done.code == 4
    assert "was disposed of at" in done.err
    assert "[CKP442]" in done.err


# -- all pages -----------------------------------------------------------------------------------------------------------

ROWS = 1000
BODY = parquet_file(ROWS)
NAMES = ("part-00000.parquet", "part-00001.parquet")


@pytest.fixture
def history(store: LocalStore) -> Coordinator:
    """Two checkpoints, of which the second holds also the rows of the first."""
    coordinator = driver(store)
    stages: list[StateSnapshot] = []
    for number in (1, 2):
        path = file_set_path(f"s{number}", 1, "n0nce")
        files = [File(name=name, bytes=len(BODY), rows=ROWS) for name in NAMES]
        for name in NAMES:
            store.create(f"{coordinator.keys.file_set(path)}/{name}", BODY)
        made_of = FileSet(path=path, files=with_footers(store, coordinator.keys.file_set(path), files))
        stages.append(stage(f"s{number}", number, made_of=made_of))
        coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        coordinator.acknowledge(acknowledgement(number, *stages))
        coordinator.complete(number)
    return coordinator


def test_deep_verify_reads_all_pages(history: Coordinator, checkpoints: Command) -> None:
    done = checkpoints("verify", "--deep", str(history.pointer(2)))
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("all 4 files there, sizes and pages match\n")


@pytest.mark.parametrize(
    ("uid", "advice"),
    [("s2", "chk-1 is the next older one that is whole"), ("s1", "there is no other one that is whole")],
)
def test_deep_verify_names_the_damaged_page_and_an_older_checkpoint_without_it(
    history: Coordinator, store: LocalStore, checkpoints: Command, uid: str, advice: str
) -> None:
    key = f"{history.keys.file_set(file_set_path(uid, 1, 'n0nce'))}/{NAMES[1]}"
    store.overwrite(key, flipped(BODY, 300))
    assert checkpoints("verify", str(history.pointer(2))).code == 0, "pages are not read"
    done = checkpoints("verify", "--deep", str(history.pointer(2)))
    assert (done.code, done.out) == (1, "")
    assert f"chk-2 cannot be restored: state '{uid}': {key} has a page at byte " in done.err
    assert advice in done.err
