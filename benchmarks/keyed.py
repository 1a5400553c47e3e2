"""A query with many keys of state, in a driver of its own, and the files that arrive for it. Runs on Linux.

The state lies in RocksDB, which uploads what a batch has changed, and from time to time a snapshot.
"""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager

import pyarrow
import pyarrow.parquet

from benchmarks.drivers import Driver, Drivers
from benchmarks.rounds import Run

OURS, PLAIN = "ours", "plain"
ROCKSDB = "spark.sql.streaming.stateStore"
CONFS = {
    f"{ROCKSDB}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{ROCKSDB}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{ROCKSDB}.maintenanceInterval": "5s",  # a minute by default, in which few snapshots would be seen
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "100ms",  # a driver that waits must not disturb the measured one
}
ROWS = 2_000  # of a file; half of its keys were in the file before
JOBS = "Spark jobs a batch"


class KeyedQuery:
    """A query over ``keys`` keys, and the driver that runs it now. A later driver goes on where an older one was."""

    def __init__(self, drivers: Drivers, variant: str, keys: int) -> None:
        self._drivers, self._variant = drivers, variant
        self.root = drivers.new_root("s3" if variant == OURS else "s3a")
        self._out, self._inbox = drivers.new_root("s3a"), drivers.folder / f"inbox-{variant}"
        self._inbox.mkdir()
        self._next, self._files, self._jobs = 0, 0, 0
        self._put(keys)

    def started(self) -> AbstractContextManager[Driver]:
        """Start a driver."""
        self._jobs = 0
        return self._drivers.started("keyed.py", self._variant, self.root, self._out, str(self._inbox))

    def put(self, files: int) -> None:
        """Let files arrive: each makes a batch."""
        for _ in range(files):
            self._next -= ROWS // 2
            self._put(ROWS)

    def _put(self, rows: int) -> None:
        keys = range(self._next, self._next + rows)
        hidden = self._inbox / f".{self._files}"
        pyarrow.parquet.write_table(pyarrow.table({"k": pyarrow.array(keys, pyarrow.int64())}), hidden)
        hidden.rename(self._inbox / f"{self._files:05d}.parquet")
        self._next, self._files = self._next + rows, self._files + 1

    def batches(self, driver: Driver, number: int) -> Run:
        """Let files arrive, and wait until they are read. Return the median of their batches."""
        self.put(number)
        told = driver.ask("all")
        jobs, self._jobs = told["jobs"] - self._jobs, told["jobs"]
        batches = told["milliseconds"]
        return Run(statistics.median(batches) / 1000, {JOBS: jobs / len(batches)})

    def check(self, driver: Driver) -> None:
        """Raise ``AssertionError`` unless each key was written once."""
        told = driver.ask("rows")
        assert told == {"rows": self._next, "keys": self._next}, f"{self._variant}: {told}, not {self._next:,} of each"
