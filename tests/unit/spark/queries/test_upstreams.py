"""A query that reads what another one writes, when that one goes back. Runs anywhere."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.copying import copy_files
from airflow_checkpoint_provider.location.files import Location, LocationFiles, Position, needed_files
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations, Start
from airflow_checkpoint_provider.spark.queries.location.restored_links import Links
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.sinks import folder_in, sink_in, write_batch
from tests.unit.spark.driver import Driver

UPSTREAM, READER = "bronze", "silver"
HAS_ALL_ROWS = cast(Any, SimpleNamespace(check_can_continue=lambda reading: None))
SAVED = "state/bronze/1-saved"


class Attempts:
    """The attempts of a job with the query ``bronze``, which writes files, and ``silver``, which reads them."""

    def __init__(self) -> None:
        self.store, self.tries, self.saved = MemoryStore(), 0, cast(StateSnapshot | None, None)

    def start(self, *uids: str) -> list[LocatedQuery]:
        """Return where the queries run in a new attempt."""
        self.tries += 1
        self.driver = Driver(self.store, self.tries)
        self.driver.attempt.restored = cast(Any, SimpleNamespace(point=Point(id=1)))
        locations = Locations(self.driver.attempt)
        return [locations.locate(self._start(uid)) for uid in uids]

    def _start(self, uid: str) -> Start:
        links = Links(InFlight(self.driver.attempt, uid, ()))
        if uid == READER:
            sink, restored, after = StreamSink(uid, Target("kafka", "")), None, (UPSTREAM,)
            return Start(uid, restored, sink, HAS_ALL_ROWS, links, adopt=None, rescaling=None, after=after)
        files: FileStreamSink = sink_in(self.store)
        files.uid = uid
        return Start(uid, self.saved, files, HAS_ALL_ROWS, links, adopt=None, rescaling=None, after=())

    def run(self, located: LocatedQuery, batches: int) -> None:
        """Commit batches of a query; those of ``bronze`` have a file each."""
        located.own.store.overwrite(located.own.key_of("metadata"), b'{"id":"1"}')
        for number in range(located.position.committed + 1, located.position.committed + 1 + batches):
            offset = b'v1\n{"batchWatermarkMs":0}\n' + json.dumps({"logOffset": number}).encode()
            self.store.overwrite(located.own.key_of(f"offsets/{number}"), offset)
            self.store.overwrite(located.own.key_of(f"commits/{number}"), b"v1\n{}")
            if located.uid == UPSTREAM:
                write_batch(self.store, number)

    def save(self, located: LocatedQuery, batch: int) -> None:
        """Let the checkpoint of the restores hold ``bronze`` at a batch."""
        found = LocationFiles(located.own)
        names = needed_files(found, Position(batch, batch))
        copy_files(found, Location(self.store, self.driver.attempt.keys.file_set(SAVED)), names)
        path = folder_in(self.store).uri
        detail = QueryDetail(
            location=located.path, batch=batch, begun=batch, sink="parquet", path=path, sources={}, watermark_ms=0,
            newest_file=f"{path}/day={batch}/part-0",
        )  # fmt: skip
        files = tuple(File(name=name, bytes=found.sizes[name], rows=0) for name in names)
        self.saved = StateSnapshot(
            uid=UPSTREAM, kind="query", run="r", query=detail, file_sets=(FileSet(path=SAVED, files=files),)
        )

    def restore(self, *, back: bool) -> None:
        token = Token(dag="", run=f"after {self.tries}, back: {back}", task="checkpoints restore")
        self.driver.coordinator.journal.append(
            c.Restore(token=token, base=None, by="ann", reason="", rewind_queries=back, rewind_sink=back)
        )


@pytest.fixture
def attempts() -> Attempts:
    """Return a job that has run: four batches of the upstream, all of them read. Its checkpoint holds only the upstream, at batch 1."""
    attempts = Attempts()
    bronze, silver = attempts.start(UPSTREAM, READER)
    attempts.run(bronze, 4)
    attempts.run(silver, 2)
    attempts.save(bronze, 1)
    return attempts


def test_reader_does_not_go_on_after_its_upstream_went_back_without_it(attempts: Attempts) -> None:
    """The old version of the script has only the upstream. The new version returns, with ``restore --from latest``."""
    attempts.restore(back=True)
    (bronze,) = attempts.start(UPSTREAM)
    assert bronze.gone_back
    attempts.run(bronze, 2)
    attempts.restore(back=False)
    says = (
        "'silver' cannot continue: query 'bronze', whose files it reads, has gone back.* another uid and an empty path"
    )
    with pytest.raises(SinkMoved, match=says):
        attempts.start(UPSTREAM, READER)


def test_reader_goes_on_if_nobody_went_back_after_all(attempts: Attempts) -> None:
    """The restore was undone before any driver had started."""
    attempts.restore(back=True)
    attempts.restore(back=False)
    bronze, silver = attempts.start(UPSTREAM, READER)
    assert (bronze.position.committed, silver.position.committed) == (3, 1)


def test_files_are_written_again_by_a_query_that_went_back_and_by_no_other(attempts: Attempts) -> None:
    """A query that stands at its batch, or that the script no longer starts, writes nothing again: what is gone of its files is missing."""

    def written_again() -> set[str | None]:
        driver = attempts.driver
        return Queries(cast(Any, None), driver.attempt, driver.states, CheckpointConfig())._written_again()

    attempts.restore(back=True)
    attempts.start()
    assert written_again() == set()
    attempts.start(UPSTREAM)
    assert written_again() == {folder_in(attempts.store).uri}
    attempts.restore(back=True)
    attempts.start()
    assert written_again() == set(), "it has to go back once more"
