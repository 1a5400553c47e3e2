"""What each batch of a query of ``tests/jobs/matrix.py`` must hold, given the files of the input that it read. Runs anywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet

from airflow_checkpoint_provider.location.files import Location
from tests.jobs.matrix import BUCKETS
from tests.support.streams import EVENTS, ROWS, SECONDS, row

Rows = Counter[tuple[Any, ...]]
Files = frozenset[int]
Read = tuple[Files, ...]
"""What each source has read: the numbers of the files."""
Emits = Callable[[Read, Read, Rows, Read], Rows]
"""The rows of a batch, from what was read before it, what is read with it, the rows of all batches before, and what the watermark
knows of what was read before."""


# -- what a batch must hold ------------------------------------------------------------------------------------------------


def _dedup(before: Read, now: Read, *_: object) -> Rows:
    return Rows((key,) for key in _keys(now[0]) - _keys(before[0]))


def _keys(files: Files) -> set[object]:
    return {row(file, n)["key"] for file in files for n in range(ROWS)}


def _join(before: Read, now: Read, *_: object) -> Rows:
    new = (now[0] & now[1]) - (before[0] & before[1])
    return Rows((file * ROWS + n,) for file in new for n in range(ROWS))


def _count(_: Read, now: Read, seen: Rows, known: Read) -> Rows:
    """A file is a window. The newest file that the watermark knows closes those below it.

    Spark may see a file later than a newer one: it lists a folder while files arrive there.
    """
    closed = (file for file in now[0] if file < max(known[0], default=-1))
    return Rows((EVENTS + timedelta(seconds=SECONDS * file), ROWS) for file in closed) - seen


def _totals(before: Read, now: Read, *_: object) -> Rows:
    """Each bucket has a row of each second."""
    total = len(now[0]) * SECONDS
    return Rows((bucket, total, total) for bucket in range(BUCKETS) if now != before)


OF_OPERATOR: dict[str, tuple[Emits, tuple[str, ...]]] = {
    "dedup": (_dedup, ("key",)),
    "join": (_join, ("id",)),
    "count": (_count, ("start", "count")),
    "totals": (_totals, ("bucket", "rows", "seconds")),
}
"""What the batches of each operator must hold, and in which columns."""


Entries = tuple[int, ...]
"""The number of entries in the log of each source."""


def check(operator: str, batches: Mapping[int, Rows], logs: list[list[Files]], repeated: Collection[int] = ()) -> None:
    """Raise unless each batch holds what it must, and the last one ends the input.

    A batch goes on by at most one entry in the log of each source. Which sources it read is not known any more, so all ways are
    followed: one of them must explain every batch. If a batch is ``repeated`` whose rows the sink holds already, Spark computes
    nothing, and the watermark learns nothing of what the batch has read.
    """
    emits = OF_OPERATOR[operator][0]
    assert sorted(batches) == list(range(len(batches))), sorted(batches)
    nothing = (0,) * len(logs)
    seen, ways = Rows(), {(nothing, nothing)}  # what was read, and what of it the watermark knows
    for number in range(len(batches)):
        left = {
            (now, known)
            for way, known in ways
            for now in _steps(logs, way)
            if emits(_read(logs, way), _read(logs, now), seen, _read(logs, known)) == batches[number]
        }
        assert left, (
            f"batch {number} holds {_short(batches[number])}; before it, {sorted(ways)} entries of {logs} were read"
        )
        learned = {(now, now) for now, _ in left}
        seen, ways = seen + batches[number], learned | left if number in repeated else learned
    whole = tuple(map(len, logs))
    ends = [known for now, known in ways if now == whole]
    assert ends, f"{logs} was read as far as {sorted(ways)}"
    left_out = [emits(_read(logs, whole), _read(logs, whole), seen, _read(logs, known)) for known in ends]
    assert not all(left_out), f"{_short(left_out[0])} are in no batch"


def _steps(logs: list[list[Files]], way: Entries) -> Iterator[Entries]:
    """Yield how far a batch may have read that began at ``way``."""
    for step in product((0, 1), repeat=len(logs)):
        now = tuple(map(sum, zip(way, step, strict=True)))
        if all(n <= len(log) for n, log in zip(now, logs, strict=True)):
            yield now


def _read(logs: list[list[Files]], entries: Entries) -> Read:
    return tuple(frozenset[int]().union(*log[:number]) for log, number in zip(logs, entries, strict=True))


def _short(rows: Rows) -> str:
    return f"{sum(rows.values())} rows: {sorted(rows.items(), key=str)[:5]}"


# -- what the batches hold -------------------------------------------------------------------------------------------------


def rows_of_batches(sink: Path, operator: str) -> dict[int, Rows]:
    """Return the rows of each batch in a file sink. Its log must not have been cleaned up."""
    columns, known = OF_OPERATOR[operator][1], set[str]()
    batches = dict[int, Rows]()
    for number, entry in sorted(
        (int(file.name.removesuffix(".compact")), file) for file in (sink / "_spark_metadata").glob("[0-9]*")
    ):
        paths = {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
        batches[number] = Rows(
            found for path in paths - known for found in _rows(Path(unquote(urlparse(path).path)), columns)
        )
        known |= paths
    return batches


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    table = pyarrow.parquet.ParquetFile(file).read(columns=list(columns))
    for found in table.to_pylist():
        values = (found[column] for column in columns)
        yield tuple(value.replace(tzinfo=UTC) if hasattr(value, "tzinfo") else value for value in values)


def logs_of_sources(location: Location) -> list[list[Files]]:
    """Return the files that each file source of a query has read, by the entries of its log."""
    sources = dict[int, dict[int, set[int]]]()
    for name in location.sizes():
        if name.startswith("sources/"):
            entries = sources.setdefault(int(name.split("/")[1]), {})
            for line in location.read(name).decode().splitlines()[1:]:
                about = json.loads(line)
                entries.setdefault(about["batchId"], set()).add(int(Path(about["path"]).stem))
    return [[frozenset(entries[number]) for number in sorted(entries)] for _, entries in sorted(sources.items())]
