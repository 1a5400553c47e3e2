"""What Spark does with a query's checkpoint location and with a file sink, step by step. Runs anywhere.

Only its order of steps is kept, as it was measured on 4.2: a temporary file, a last look, a rename that replaces what is there.
An input of ``TOTAL`` rows grows meanwhile, so what a batch reads depends on when it begins. Rows are numbers; a batch is a range.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from airflow_checkpoint_provider.file_sink.log import LOG, FileSinkLog
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.foreign import HEADER
from airflow_checkpoint_provider.location.renumbering import CODEC, LZ4
from tests.model.explore import Process

TOTAL, MOST, KEPT = 5, 2, 2  # rows of the input, rows that a batch reads, batches that a purge keeps beside the newest
PARTITIONS = 2
FOLDER = "sink"
SINK = f"{FOLDER}/{LOG}"
ROWS = b"rows"  # the content of a file in the sink

Range = tuple[int, int]


class Failed(Exception):
    """The error with which a query ends."""


def feeder(process: Process, rows: int = TOTAL) -> None:
    """Let the input grow, row by row."""
    for row in range(1, rows + 1):
        process.overwrite(f"input/{row}", b"row %d" % row)


@dataclass(frozen=True)
class At:
    """Where a query stands: the batch that is next, what it reads if that is written, and the first row after the batch before."""

    batch: int
    reads: Range | None
    first: int


class Spark:
    """A query on the location ``key``, started by ``author``. ``stateful``: it keeps a state, in ``PARTITIONS`` parts."""

    def __init__(self, process: Process, key: str, author: str, *, stateful: bool, s3: bool) -> None:
        self.process, self.key, self.author, self.stateful, self.s3 = process, key, author, stateful, s3

    # -- starting --------------------------------------------------------------------------------------------------

    def start(self) -> At:
        """Find out where the query stands."""
        begun = self._numbers("offsets")
        if not begun:
            if self.process.read(f"{self.key}/metadata") is None:
                self.process.overwrite(f"{self.key}/metadata", b"{}")
            return At(0, None, 0)
        newest = begun[-1]
        reads = range_of(self.process.read(f"{self.key}/offsets/{newest}"))
        if newest and newest - 1 not in begun:
            raise Failed(f"offsets/{newest - 1} is missing")
        if newest in self._numbers("commits"):
            return At(newest + 1, None, reads[1])
        return At(newest, reads, reads[0])

    def _numbers(self, log: str) -> list[int]:
        return numbers(self.process, f"{self.key}/{log}")

    # -- a batch ---------------------------------------------------------------------------------------------------

    def batch(self, at: At) -> At:
        """Run the batch that is next, from its offsets to the purge."""
        reads = at.reads or self._begin(at)
        if (
            sink_log(self.process).newest_batch() < at.batch
        ):  # else the sink skips it: no plan runs, no state is written
            self._run(at.batch, reads)
        self._write_atomically(f"{self.key}/commits", at.batch, b"{}", "CONCURRENT_STREAM_LOG_UPDATE")
        self._purge(at.batch)
        return At(at.batch + 1, None, reads[1])

    def _begin(self, at: At) -> Range:
        self.process.waits_for(b"row %d" % (at.first + 1))
        there = len([*self.process.list("input")])
        reads = at.first, min(there, at.first + MOST)
        offsets = json.dumps({"rows": reads, "by": self.author})
        body = f"v1\n{ABOUT}\n{offsets}".encode()
        self._write_atomically(f"{self.key}/offsets", at.batch, body, "CONCURRENT_STREAM_LOG_UPDATE")
        return reads

    def _write_atomically(self, log: str, number: int, body: bytes, race: str) -> None:
        """Write an entry of a log as Spark does: which is not atomic if another driver writes it, too."""
        entry, hidden = f"{log}/{number}", f"{log}/.{number}.{self.author}.tmp"
        self.process.overwrite(hidden, body)
        if self.process.read(entry) is not None:
            self.process.delete([hidden])
            raise Failed(race)
        if not self._rename(hidden, entry):
            raise Failed(f"{hidden} does not exist")

    def _rename(self, hidden: str, entry: str) -> bool:
        if not self.s3:
            return self.process.rename(hidden, entry)
        if not self.process.begin_copy(hidden, entry):
            return False
        self.process.landed(entry)
        self.process.delete([hidden])
        return True

    def _run(self, batch: int, reads: Range) -> None:
        """Write the state, then the sink's entry."""
        if self.stateful:
            self._check_state(batch, reads)
            if reads[0] == 0:
                self.process.overwrite(f"{self.key}/state/0/_metadata/metadata", STORES)
            for partition in range(PARTITIONS):
                self.process.overwrite(f"{self.key}/state/0/{partition}/{batch + 1}.delta", b"%d" % reads[1])
        name = f"{batch}-{self.author}"
        self.process.overwrite(f"{FOLDER}/{name}", ROWS)
        self._write_atomically(SINK, batch, sink_entry((name, reads)), f"Race while writing batch {batch}")

    def _check_state(self, batch: int, reads: Range) -> None:
        """Read the state that the batch changes: all parts as the batch before left them."""
        there = {listed.key for listed in self.process.list(f"{self.key}/state")}
        for partition in range(PARTITIONS):
            folder = f"{self.key}/state/0/{partition}"
            empty = max((n for n in range(1, batch + 1) if f"{folder}/{n}.snapshot" in there), default=0)
            for version in range(empty + 1, batch + 1):
                name = f"{folder}/{version}.delta"
                if name not in there:
                    raise Failed(f"{name} does not exist")
            found = self.process.read(name) if batch > empty else b"0"
            if found is None:
                raise Failed(f"{name} does not exist")
            if found != b"%d" % reads[0]:
                self.process.says("broken", f"Q5: batch {batch} reads rows {reads}, and its state stands at {found!r}")

    def _purge(self, batch: int) -> None:
        for log in ("offsets", "commits"):
            old = [number for number in self._numbers(log) if number < batch - KEPT]
            self.process.delete(f"{self.key}/{log}/{number}" for number in old)


ABOUT = json.dumps({"batchWatermarkMs": 0, "conf": {CODEC: LZ4}})
STORES = b'v1\n{"stateStoreInfo":[{"storeName":"default","numPartitions":%d}]}' % PARTITIONS


def numbers(process: Process, log: str) -> list[int]:
    """Return the numbers of the entries of a log, lowest first."""
    return sorted(int(name) for listed in process.list(log) if (name := listed.key.rpartition("/")[2]).isdecimal())


def range_of(body: bytes | None) -> Range:
    """Return the rows that an entry names."""
    try:
        first, last = json.loads((body or b"").decode().rpartition("\n")[2])["rows"]
    except (ValueError, KeyError, TypeError):
        raise Failed("INVALID_LOG_VERSION") from None
    return first, last


# -- the sink ------------------------------------------------------------------------------------------------------------


def sink_log(process: Process) -> FileSinkLog:
    """Return the log of the file sink, as the package's code reads and changes it. It is compacted every second batch."""
    return FileSinkLog(StoreFolder(Location(cast(Any, process), FOLDER)), interval=2)


def sink_entry(*files: tuple[str, Range]) -> bytes:
    """Return an entry of the sink's log, for files and the rows in them."""
    about = ({"path": f"{Process.uri}/{FOLDER}/{name}", "size": len(ROWS), "rows": rows} for name, rows in files)
    return "\n".join((HEADER, *map(json.dumps, about))).encode()


# -- what PySpark gives --------------------------------------------------------------------------------------------------


class Writer:
    """A ``DataStreamWriter``, whose query runs the batch that had begun, and no further, before ``start`` returns."""

    def __init__(self, make: Callable[[str], Spark]) -> None:
        self._make, self._spark = make, make("")

    def option(self, _: str, location: str) -> Writer:
        self._spark = self._make(location)
        return self

    def start(self) -> Any:
        error = None
        try:
            at = self._spark.start()
            if at.reads:
                self._spark.batch(at)
        except Failed as failed:
            error = failed
        named = SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution")
        execution = SimpleNamespace(getClass=lambda: named)
        return SimpleNamespace(
            isActive=error is None,
            exception=lambda: error,
            stop=lambda: None,
            _jsq=SimpleNamespace(streamingQuery=lambda: execution),
        )
