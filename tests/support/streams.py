"""Input of a query with a known answer, and what its file sink holds. Runs on Linux."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet

ROWS = 30  # in each file of the input
SECONDS = 10  # of event time in each file
EVENTS = datetime(2026, 1, 1, tzinfo=UTC)
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # of linux/fs.h and fcntl.h
NEW_KEYS = 15  # in each file; the other half of its keys was in the file before


def add_files(folder: Path, *numbers: int) -> None:
    """Put files of the input, all at once: a running query that lists the folder finds all of them, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    added = folder.with_name(f".{folder.name}.next")
    shutil.rmtree(added, ignore_errors=True)  # of the call before: a query may have been about to list it
    shutil.copytree(folder, added, copy_function=os.link)
    for number in numbers:
        path = added / f"{number:04d}.json"
        path.unlink(missing_ok=True)  # a link to a file that may be read now
        path.write_text("".join(f"{json.dumps(row(number, n))}\n" for n in range(ROWS)))
        os.utime(path, times=(EVENTS.timestamp() + number,) * 2)  # Spark reads the files in this order
    _exchange(added, folder)


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one step, for which Python has no function."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), f"{one} and {other} cannot be exchanged")


def row(file: int, number: int) -> dict[str, object]:
    """Return a row of a file. Each file has its own ten seconds of event time."""
    at = EVENTS + timedelta(seconds=file * SECONDS + number % SECONDS)
    return {"id": file * ROWS + number, "key": f"k{file * NEW_KEYS + number}", "at": at.isoformat()}


def expected(files: int) -> list[int]:
    """Return the ids of all rows of the first files."""
    return list(range(files * ROWS))


def expected_keys(files: int) -> list[str]:
    """Return the keys of all rows of the first files, each once, sorted."""
    return sorted(f"k{n}" for n in range((files - 1) * NEW_KEYS + ROWS))


def sink_log(out: Path) -> dict[int, list[Path]]:
    """Return the files of each batch, as the log of a file sink names them. Later batches of a compacted entry count as its own."""
    batches: dict[int, list[Path]] = {}
    log = out / "_spark_metadata"
    names = sorted(log.glob("[0-9]*"), key=lambda file: int(file.name.removesuffix(".compact"))) if log.is_dir() else []
    for entry in names:
        _, *lines = entry.read_text().splitlines()
        paths = [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]
        batches[int(entry.name.removesuffix(".compact"))] = paths
        if entry.name.endswith(".compact"):
            batches = {int(entry.name.removesuffix(".compact")): paths}
    return batches


def rows_in(out: Path, column: str = "id") -> list[Any]:
    """Return a column of all rows that a reader of the sink sees, sorted."""
    return sorted(_column([file for paths in sink_log(out).values() for file in paths], column))


def ids_in(files: Iterable[Path]) -> list[int]:
    """Return the ids of the rows in ``files``."""
    return _column(files, "id")


def _column(files: Iterable[Path], name: str) -> list[Any]:
    return [value for file in files for value in pyarrow.parquet.ParquetFile(file).read().column(name).to_pylist()]
