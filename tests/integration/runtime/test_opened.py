"""Open a completed checkpoint without its job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, CheckpointNotFound, Damaged, KeepAll
from airflow_checkpoint_provider.coordinator.files import export_pairs
from airflow_checkpoint_provider.coordinator.savepoint_target import put_metadata
from airflow_checkpoint_provider.errors import InvalidName
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.spark import open_checkpoint
from airflow_checkpoint_provider.storage import LocalStore, copy_all
from tests.integration.runtime.conftest import Script


def test_opened_checkpoint_returns_stages_as_rows_and_values_as_json(script: Script) -> None:
    with script.attempt() as job:
        job.value("seen").set(["a", {"b": 1}])
        job.stage("clean", job.spark.range(3))
        job.checkpoint()
        pointer = pointers(script)[0]
        opened = open_checkpoint(pointer, script.spark)
    assert (opened.uids, opened.sealed) == (("clean", "seen"), True)
    assert sorted(row["id"] for row in opened["clean"].collect()) == [0, 1, 2]
    assert opened["seen"] == ["a", {"b": 1}]
    with pytest.raises(CheckpointNotFound, match=r"chk-1 holds no state 'dirty'\. It holds clean, seen"):
        opened["dirty"]


def pointers(script: Script) -> list[str]:
    coordinator = script.coordinator()
    return [
        f"{coordinator.store.uri}/{coordinator.keys.prefix}/chk-{checkpoint.id}"
        for checkpoint in coordinator.state.checkpoints
    ]


def three_checkpoints(script: Script, **options: object) -> list[str]:
    with script.attempt(**options) as job:
        for uid in ("first", "second", "third"):
            job.stage(uid, job.spark.range(3))
    return pointers(script)


def test_deleted_checkpoint_is_refused_with_the_retention_that_keeps_it(script: Script) -> None:
    first, second, third = three_checkpoints(script)
    for kept in (second, third):
        assert open_checkpoint(kept, script.spark)["first"].count() == 3
    with pytest.raises(CheckpointNotFound, match=r"deleted.*retention=KeepWithin\(days=7\) keeps it next time"):
        open_checkpoint(first, script.spark)


@pytest.mark.slow  # test_deleted_checkpoint_is_refused_with_the_retention_that_keeps_it opens two
def test_keep_all_keeps_all_checkpoints(script: Script) -> None:
    for kept in three_checkpoints(script, checkpointing=CheckpointConfig(retention=KeepAll())):
        assert open_checkpoint(kept, script.spark)["first"].count() == 3


def test_checkpoint_with_a_cut_file_is_damaged(script: Script) -> None:
    *_, last = three_checkpoints(script)
    file = next(script.root.rglob("state/second/*/part-*"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Damaged, match=rf"chk-3 cannot be restored: .*{file.name} has"):
        open_checkpoint(last, script.spark)


def test_pointer_to_no_checkpoint_is_refused(script: Script) -> None:
    *_, last = three_checkpoints(script)
    with pytest.raises(CheckpointNotFound, match="never made, or no longer lists"):
        open_checkpoint(f"{last}0", script.spark)
    with pytest.raises(CheckpointNotFound, match="there is no history at jobs/other/job"):
        open_checkpoint(last.replace("/jobs/job/", "/jobs/other/"), script.spark)
    with pytest.raises(CheckpointNotFound, match="there is no savepoint: it holds no _metadata"):
        open_checkpoint(last.rpartition("/")[0], script.spark)
    with pytest.raises(InvalidName, match="is not a pointer"):
        open_checkpoint("chk-7", script.spark)


def test_savepoint_is_opened_without_its_history(script: Script, tmp_path: Path) -> None:
    with script.attempt() as job:
        job.value("seen").set(["a"])
        job.stage("clean", job.spark.range(3))
    coordinator = script.coordinator()
    newest = max(coordinator.state.retained, key=lambda checkpoint: checkpoint.id)
    target = LocalStore(tmp_path / "before {the,price} change*[1]")
    pointer = SavepointPointer(target.uri, "of monday?")
    pairs = export_pairs(coordinator.read_seal(newest).states.values(), coordinator.keys, pointer.keys)
    copy_all(coordinator.store, target, pairs)
    put_metadata(coordinator.store, coordinator.keys.seal(newest.id), newest.digest, target, pointer)
    shutil.rmtree(script.root)
    opened = open_checkpoint(f"{pointer}/_metadata", script.spark)
    assert (opened.uids, opened.sealed, opened["seen"]) == (("clean", "seen"), True, ["a"])
    assert sorted(row["id"] for row in opened["clean"].collect()) == [0, 1, 2]
    next(Path(target.root).rglob("part-*")).unlink()
    with pytest.raises(Damaged, match=r"of monday\? is not whole: .* is missing"):
        open_checkpoint(str(pointer), script.spark)
