"""Tests that rows are published once, whoever commits, aborts or wakes up. Run anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Damaged, NotSupportedYet, OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.sinks import log
from airflow_checkpoint_provider.sinks.log import CommitLog, RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.sinks.staging import STAGING, rows_key
from airflow_checkpoint_provider.spark.sinks.files import OpenFileSink
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, S3Store, Store
from tests.support.faults import Call, Fault, FaultyStore, Killed, SlowFolder
from tests.support.targets import MONDAY, TUESDAY, files_of, left, name_of, staged, visible


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return S3Store(request.getfixturevalue("bucket"), "target", request.getfixturevalue("s3").settings())
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "target", private=False)


def test_staged_rows_are_not_visible_before_the_commit(store: Store) -> None:
    files = files_of(store)
    transaction = staged(files, name_of(1), "a", "b")
    assert visible(store) == []
    assert files.commit(transaction)
    assert visible(store) == ["a", "b"]
    assert left(store) == []


def test_commit_may_be_repeated_by_any_process(store: Store) -> None:
    files = files_of(store)
    transaction = staged(files, name_of(1), "a")
    assert files.commit(transaction)
    assert files.commit(transaction)
    assert files_of(store).commit(transaction)
    assert files_of(store, TUESDAY).commit(transaction)
    assert visible(store) == ["a"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_rows_are_published_as_they_were_prepared(store: Store, overwrite: bool) -> None:
    """Whoever commits them: a fork that was given them, or a later run of a changed script."""
    earlier = files_of(store)
    earlier.commit(staged(earlier, name_of(1), "earlier"))
    files = PublishedFiles(store, MONDAY, overwrite=overwrite, file_format="csv", patience=0)
    files.begin()
    held = staged(files, name_of(2), "a")
    other = PublishedFiles(store, TUESDAY, overwrite=not overwrite, file_format="orc", patience=0)
    other.begin()
    assert other.commit(held)
    assert visible(store) == (["a"] if overwrite else ["a", "earlier"])
    entry = other.log.read().commits[-1]
    assert (entry.by, entry.overwrite, entry.format) == (MONDAY, overwrite, "csv")


def test_names_of_files_hold_the_transaction_and_keep_the_partition(store: Store) -> None:
    files = files_of(store)
    files.commit(staged(files, name_of(1), "a"))
    assert [found.key for found in store.list("day=0")] == [f"day=0/{name_of(1)}-part-0.csv"]


def test_aborted_transaction_is_never_committed(store: Store) -> None:
    files = files_of(store)
    transaction = staged(files, name_of(1), "a")
    assert files_of(store, TUESDAY).abort([transaction.name], 0) == ()
    assert not files.commit(transaction)
    assert visible(store) == []
    assert left(store) == []


def test_committed_transaction_is_not_aborted(store: Store) -> None:
    files = files_of(store)
    transaction = staged(files, name_of(1), "a")
    files.commit(transaction)
    assert files_of(store, TUESDAY).abort([transaction.name, name_of(2)], 0) == (transaction.name,)
    assert visible(store) == ["a"]


def test_overwrite_replaces_all_rows_and_nothing_that_came_later(store: Store) -> None:
    first = files_of(store, overwrite=True)
    first.commit(staged(first, name_of(1), "old"))
    second = files_of(store, TUESDAY, overwrite=True)
    second.commit(staged(second, name_of(2), "new", "newer"))
    assert visible(store) == ["new", "newer"]


def test_first_overwrite_replaces_the_files_that_were_there(store: Store) -> None:
    store.create("part-0.csv", b"before")
    store.create("_SUCCESS", b"")
    files = files_of(store, overwrite=True)
    assert visible(store) == ["before"]
    files.commit(staged(files, name_of(1), "new"))
    assert visible(store) == ["new"]


def test_append_keeps_what_was_there_and_replaces_what_its_run_computes_again(store: Store) -> None:
    store.create("part-0.csv", b"before")
    files = files_of(store)
    files.commit(staged(files, name_of(1), "a", "b"))
    again = staged(files, name_of(2), "a2", replaces=(name_of(1),))
    files.commit(again)
    assert visible(store) == ["a2", "before"]


def test_yesterdays_driver_publishes_nothing_into_todays_overwrite(store: Store) -> None:
    monday = files_of(store, overwrite=True)
    late = staged(monday, name_of(1), "yesterday")
    tuesday = files_of(store, TUESDAY, overwrite=True)
    tuesday.commit(staged(tuesday, name_of(2), "today"))
    with pytest.raises(OverwrittenSince, match="clear this task"):
        monday.commit(late)
    assert visible(store) == ["today"]
    assert left(store) == []


def test_overwrite_since_is_told_though_the_clean_up_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was tried again would find the abort, and the job would end without its rows."""
    monday = files_of(store, overwrite=True)
    late = staged(monday, name_of(1), "yesterday")
    tuesday = files_of(store, TUESDAY, overwrite=True)
    tuesday.commit(staged(tuesday, name_of(2), "today"))
    monkeypatch.setattr(monday, "_delete_staged", fails)
    with pytest.raises(OverwrittenSince):
        monday.commit(late)
    assert [found.name for found in tuesday.leftovers()] == [name_of(1)]


def fails(*_: object) -> None:
    raise StoreUnavailable("503 slow down")


def test_the_run_that_began_later_has_the_last_word_though_the_other_commits_first(store: Store) -> None:
    monday, tuesday = files_of(store, overwrite=True), files_of(store, TUESDAY, overwrite=True)
    today = staged(tuesday, name_of(2), "today")
    monday.commit(staged(monday, name_of(1), "yesterday"))
    tuesday.commit(today)
    assert visible(store) == ["today"]


def test_cleared_run_begins_anew_and_may_overwrite_a_later_run(store: Store) -> None:
    files_of(store, overwrite=True)
    tuesday = files_of(store, TUESDAY, overwrite=True)
    tuesday.commit(staged(tuesday, name_of(2), "today"))
    cleared = files_of(store, replace(MONDAY, generation=1), overwrite=True)
    cleared.commit(staged(cleared, name_of(3), "monday again"))
    assert visible(store) == ["monday again"]


def test_retry_does_not_begin_anew(store: Store) -> None:
    files_of(store, overwrite=True)
    tuesday = files_of(store, TUESDAY, overwrite=True)
    tuesday.commit(staged(tuesday, name_of(2), "today"))
    retry = files_of(store, overwrite=True)
    with pytest.raises(OverwrittenSince):
        retry.commit(staged(retry, name_of(3, epoch=2), "yesterday"))
    assert visible(store) == ["today"]


def of_moved(run: RunOfSink) -> RunOfSink:
    """Return the same run of the same history after its root got another URI."""
    return replace(run, history=run.history.replace("memory://lake/", "s3://new-lake/checkpoints/"))


def test_retry_does_not_begin_anew_though_the_root_was_moved(store: Store) -> None:
    monday = replace(MONDAY, incarnation="1nc")
    files_of(store, monday, overwrite=True)
    tuesday = files_of(store, TUESDAY, overwrite=True)
    tuesday.commit(staged(tuesday, name_of(2), "today"))
    retry = files_of(store, of_moved(monday), overwrite=True)
    with pytest.raises(OverwrittenSince):
        retry.commit(staged(retry, name_of(3, epoch=2), "yesterday"))
    assert visible(store) == ["today"]


@pytest.mark.parametrize(
    ("now", "known"),
    [
        pytest.param(of_moved(replace(TUESDAY, incarnation="1nc")), True, id="its root was moved"),
        pytest.param(replace(TUESDAY, incarnation="0ther"), False, id="another host has a folder of that name"),
    ],
)
def test_history_knows_its_later_rows_by_its_incarnation(store: Store, now: RunOfSink, known: bool) -> None:
    before = files_of(store, replace(TUESDAY, incarnation="1nc"))
    before.commit(staged(before, name_of(1, epoch=2), "row"))
    files = files_of(store, now)
    assert [entry.version for entry in files.later(1)] == ([2] if known else [])
    opened: Any = SimpleNamespace(_commits=files)
    assert OpenFileSink.standing(opened) == (name_of(1, epoch=2),), "a run of this name at this path is computed again"


def test_empty_files_are_left_out(store: Store) -> None:
    files = files_of(store)
    files.commit(staged(files, name_of(1), "a", "", "c"))
    assert visible(store) == ["a", "c"]
    assert left(store) == []


def test_staged_file_that_somebody_deleted_is_an_error(store: Store) -> None:
    files = files_of(store)
    transaction = staged(files, name_of(1), "a", "b")
    store.delete([f"{rows_key(name_of(1))}/day=1/part-1.csv"])
    with pytest.raises(Damaged, match=r"day=1/1-0000000000000001-part-1\.csv was never published"):
        files.commit(transaction)


def test_missing_entry_of_the_log_is_an_error(store: Store) -> None:
    files = files_of(store)
    for number in range(1, 4):
        files.commit(staged(files, name_of(number), str(number)))
    store.delete(["_checkpoints/00000000000000000002"])
    with pytest.raises(Damaged, match="00000000000000000002 is missing"):
        files_of(store)


def test_entry_that_a_listing_lacks_is_read() -> None:
    store = SlowFolder()
    store.missed, store.looks = "_checkpoints/00000000000000000002", 1_000
    files = files_of(store)
    for number in range(1, 4):
        files.commit(staged(files, name_of(number), str(number)))
    assert CommitLog(store).read() == files.log.read()
    assert visible(store) == ["1", "2", "3"]


@pytest.fixture
def snapshot_every(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the log make a snapshot after a few entries."""
    monkeypatch.setattr("airflow_checkpoint_provider.sinks.log.SNAPSHOT_EVERY", 10)
    return 10


def test_long_log_is_read_from_its_snapshot(store: Store, snapshot_every: int) -> None:
    files = files_of(store)
    for number in range(1, snapshot_every + 3):
        files.commit(staged(files, name_of(number), str(number)))
    counted = FaultyStore(store)
    log = CommitLog(counted)
    contents = log.read()
    assert len(contents.files) == snapshot_every + 2
    assert counted.requests["read"] == 4  # the snapshot, and three entries after it
    assert contents == files.log.read()


def test_abort_changes_nothing_about_the_snapshots(store: Store, snapshot_every: int) -> None:
    """Each run writes once: without an abort, every even entry is a commit."""
    for number in range(1, snapshot_every + 1):
        files = files_of(store, replace(MONDAY, run=f"run {number}"))
        if number == 1:
            files.abort([name_of(99)], 0)
        files.commit(staged(files, name_of(number), str(number)))
    counted = FaultyStore(store)
    assert CommitLog(counted).read().n == 2 * snapshot_every + 1
    assert counted.requests["read"] == 2  # the second snapshot, and the entry after it


def test_commit_is_done_though_its_snapshot_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, snapshot_every: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds nothing that the entries do not."""
    monkeypatch.setattr("airflow_checkpoint_provider.storage.base.LARGEST", 2_000)
    store = MemoryStore()
    files = files_of(store)
    for number in range(1, snapshot_every + 3):
        assert files.commit(staged(files, name_of(number), str(number)))
    assert len(visible(store)) == snapshot_every + 2
    (line,) = caplog.messages
    assert "00010.snapshot was not written, so each reader reads more entries: " in line


def test_old_transaction_is_found_before_the_snapshot(store: Store, snapshot_every: int) -> None:
    files = files_of(store)
    old = staged(files, name_of(1), "old")
    for number in range(2, snapshot_every + 3):
        files.commit(staged(files, name_of(number), str(number)))
    files.abort([old.name], 0)
    assert not files_of(store).commit(old)
    assert "old" not in visible(store)


def test_rows_that_a_way_back_took_out_are_told_from_others(store: Store) -> None:
    """Of an overwrite, too: what newer rows have overwritten was not taken out."""
    files = files_of(store, overwrite=True)
    held = [staged(files, name_of(number), f"row {number}") for number in (1, 2, 3)]
    assert all(files.commit(transaction) for transaction in held)
    assert files_of(store, overwrite=True).taken_out(held) == set()
    files.take_out([name_of(3)])
    assert files_of(store, overwrite=True).taken_out(held) == {name_of(3)}
    assert visible(store) == []


def test_folder_with_more_files_than_an_entry_can_name_is_refused_for_good(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LARGEST", 2_000)
    for number in range(100):
        store.overwrite(f"day={number}/part-0", b"row")
    with pytest.raises(NotSupportedYet, match=r"would name 100 new files .* Write to an empty path") as refused:
        files_of(store)
    assert refused.value.permanent
    assert not any(True for _ in store.list(log.LOG))


def test_leftovers_name_their_run(store: Store) -> None:
    files = files_of(store)
    staged(files, name_of(1), "a")
    assert [(found.name, found.by) for found in files.leftovers()] == [(name_of(1), MONDAY)]
    assert all(key.startswith(STAGING) for key in left(store))


class DiesWhileDeleting(MemoryStore):
    """Deletes the objects of a folder one after the other, as S3 does, and dies after ``left`` of them."""

    left = 1

    def delete_under(self, prefix: str) -> None:
        for found in list(self.list(prefix)):
            self.delete([found.key])
            self.left -= 1
            if not self.left:
                raise Killed


@pytest.mark.parametrize("left_to_delete", [1, 2, 3, 4])
def test_rows_are_found_by_the_next_driver_though_their_abort_died(left_to_delete: int) -> None:
    store = DiesWhileDeleting()
    files = files_of(store)
    staged(files, name_of(1), "a", "b")  # two files, a mark of success, and a record
    store.left = left_to_delete
    with pytest.raises(Killed):
        files.abort([name_of(1)], 0)
    store.left = 9
    later = files_of(store, TUESDAY)
    later.abort([found.name for found in later.leftovers()], 0)
    assert left(store) == []


def test_rows_that_spark_wrote_after_their_abort_go(store: Store) -> None:
    files = files_of(store)
    staged(files, name_of(1), "a")
    files.abort([name_of(1)], 0)
    store.create(f"{rows_key(name_of(1))}/part-9.csv", b"late")
    staged(files, name_of(2), "b")
    assert [found.name for found in files_of(store, TUESDAY).leftovers()] == [name_of(2)]
    assert all(name_of(2) in key for key in left(store))


def test_record_of_staged_rows_that_arrives_after_their_commit_goes(store: Store) -> None:
    files = files_of(store)
    first, record = staged(files, name_of(1), "a"), f"{STAGING}/{name_of(1)}/_transaction"
    body = store.read(record)
    files.commit(first)
    files.commit(staged(files, name_of(2), "b"))
    store.create(record, body or b"")  # a request whose answer was lost, and that was made again
    assert files.abort([found.name for found in files.leftovers()], 0) == (name_of(1),)
    assert (visible(store), left(store)) == (["a", "b"], [])


def test_nothing_is_staged_without_a_record(store: Store) -> None:
    files_of(store)
    silent = FaultyStore(store, lambda call: Fault.DROPPED if _is_record(call) else Fault.NONE)
    with pytest.raises(StoreUnavailable, match="no rows were staged"):
        PublishedFiles(silent, MONDAY, overwrite=False, patience=0).stage(name_of(1))


def _is_record(call: Call) -> bool:
    return call.kind == "create" and call.key.startswith(STAGING)
