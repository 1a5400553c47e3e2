"""The copies with which a preflight works, while the job goes on. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.preflight import begin_again, copy_at, copy_queries, newest_files
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.acknowledgements import acknowledgement
from tests.support.acting import RUN, Job

UID, READ = "orders", b'v1\n{"path":"file:///in/a%20b.json","timestamp":1,"batchId":7}'


def completed(job: Job, number: int) -> None:
    """Complete a checkpoint of a query after batch ``number``; the next batch has begun."""
    names = (
        "metadata",
        *(f"offsets/{number + later}" for later in (0, 1)),
        f"commits/{number}",
        "sources/0/7",
        "sources/0/12.compact",
    )
    made_of = FileSet(
        path=f"state/orders/1-n{number}", files=tuple(File(name=name, bytes=len(READ), rows=0) for name in names)
    )
    for name in names:
        job.store.create(f"{job.keys.file_set(made_of.path)}/{name}", READ)
    detail = QueryDetail(
        location=location_path(UID, 1, "a"),
        batch=number,
        begun=number + 1,
        sink="noop",
        path="",
        sources={},
        watermark_ms=0,
    )
    state = StateSnapshot(uid=UID, kind="query", run=RUN, file_sets=(made_of,), query=detail)
    asked = job.coordinator.trigger(Request(token=f"t{number}", kind="checkpoint", origin="task"))
    job.coordinator.acknowledge(acknowledgement(asked, state, epoch=1, inc=job.state.incarnation))
    job.coordinator.complete(asked)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(LocalStore(tmp_path))
    job.start()
    completed(job, 1)
    return job


def test_query_stands_behind_its_committed_batch_and_begins_one_without_rows(job: Job) -> None:
    folder = Location(job.store, "preflight/a")
    pointer, seal = copy_queries(job.coordinator, "latest", folder)
    own = copy_at(folder, UID)
    assert pointer.endswith("/chk-1")
    assert list(seal.states) == [UID]
    own.store.overwrite(own.key_of("offsets/2"), b"of a batch that had begun")
    begin_again(own, 1)
    assert own.read("offsets/2") == own.read("offsets/1")
    own.store.create(own.key_of("sources/1/0"), b'v1\n{"clicks":{"0":7}}')  # of Kafka
    assert newest_files(own, {0}) == {0: "file:///in/a b.json"}


def test_checkpoint_that_the_job_deletes_meanwhile_is_followed_by_the_newest(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as its files were listed."""
    list_ = LocalStore.list

    def busy(store: LocalStore, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from list_(store, prefix, after)
        if prefix.endswith("state/orders/1-n1"):
            monkeypatch.undo()
            store.delete_under(prefix)
            completed(job, 2)

    monkeypatch.setattr(LocalStore, "list", busy)
    folder = Location(job.store, "preflight/a")
    pointer, _ = copy_queries(job.coordinator, "latest", folder)
    assert pointer.endswith("/chk-2")
    assert copy_at(folder, UID).batches("commits") == [2]


def test_checkpoint_that_lacks_files_is_damage(job: Job) -> None:
    job.store.delete_under(job.keys.file_set("state/orders/1-n1"))
    with pytest.raises(Damaged):
        copy_queries(job.coordinator, "latest", Location(job.store, "preflight/a"))


def test_job_without_a_checkpoint_has_nothing_to_compare_with() -> None:
    job = Job(MemoryStore())
    job.start()
    with pytest.raises(CheckpointNotFound, match="has no checkpoint yet"):
        copy_queries(job.coordinator, "latest", Location(job.store, "preflight/a"))


@pytest.mark.parametrize("body", [b"v1", b"v1\n[]", b"v1\n{}"])
def test_log_of_a_source_that_names_no_file_is_damage(body: bytes) -> None:
    own = Location(MemoryStore(), "a")
    own.store.create("a/sources/0/1", body)
    with pytest.raises(Damaged, match="sources/0/1 is not what Spark writes"):
        newest_files(own, {0})
