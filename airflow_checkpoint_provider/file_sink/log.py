"""The log of Spark's own file sink: which batches of a query it has, and which files they wrote. Runs anywhere.

Spark 4.2 writes ``_spark_metadata/N`` for each batch: a line ``v1``, and a line of JSON for each file. Every tenth entry is ``N.compact``:
it holds the lines of all entries before it. A reader begins with the newest ``.compact``, and needs every entry after it. If the log has
two such entries, their distance is taken as the distance of all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.fence import TEMPORARY
from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.location.foreign import HEADER, LONG, NUMBER, loads, logged_lines, readable

LOG, COMPACT = "_spark_metadata", ".compact"
REWOUND = "_rewound-"  # begins the names of folders that hold the files that a query took out of its sink
TAIL = 64 * 1024  # bytes of an entry in which its last file is looked for
INTERVAL = 10  # of batches between two compacted entries, if nobody has set another one
ENTRY = re.compile(rf"({NUMBER})(?:\.compact)?")
_PATH = re.compile(r"(?:[^\x00-\x20\x7f\"<>\\^`{|}%?#\[\]]|%[0-9A-Fa-f]{2})*")  # of a URI without query and fragment
_NOT_QUOTED = "!$&'()*+,;=:@~"  # by Java, in the path of a URI


@dataclass(frozen=True)
class SinkFile:
    """A file that a sink holds: its ``path``, and its ``line`` in the log."""

    path: str
    line: str

    @property
    def bytes(self) -> int:
        """Return its size. Raises ``Damaged``."""
        with readable(f"the entry of {self.path} in the log of a sink"):
            size = loads(self.line)["size"]
            if type(size) is not int or not 0 <= size < LONG:
                raise ValueError("it does not say how large the file is")
            return size


class SinkFolder(Protocol):
    """The folder of a file sink. Its files have keys: their paths below it, not encoded, with ``/`` between the names."""

    @property
    def uri(self) -> str:
        """Return the folder in one spelling, not encoded."""

    def names(self, below: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""

    def hidden(self, below: str) -> list[str]:
        """Return the names of hidden files in a folder: they begin with a dot."""

    def sizes(self, below: str) -> dict[str, int]:
        """Return the bytes of each file below a folder, by its key."""

    def read(self, key: str, at_most: int | None = None) -> tuple[str, bool]:
        """Return a file, or its last bytes, and whether that is all of it. Raises ``Damaged`` if it is absent."""

    def put(self, key: str, text: str) -> None:
        """Write a file completely or not at all, unless it is there."""

    def copy(self, key: str, new: str) -> None:
        """Copy a file, unless the copy is there."""

    def move(self, key: str, new: str, size: int) -> bool:
        """Move a file of ``size`` bytes. Return False if it is not there. Raises ``Damaged`` if the moved file has another size; if a move
        is a copy, the original stays then.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files. Absent ones are no error."""

    def refuse_link(self, key: str) -> None:
        """Raise ``Damaged`` if a link of a local folder leads to the file: it may lead anywhere."""


class FileSinkLog:
    """The log of the file sink in ``folder``. Spark compacts it every ``interval`` batches."""

    def __init__(self, folder: SinkFolder, interval: int = INTERVAL) -> None:
        self.files_of, self._interval = folder, interval

    @property
    def folder(self) -> str:
        """Return the folder in one spelling."""
        return self.files_of.uri

    @property
    def interval(self) -> int:
        """Return how many batches lie between two compacted entries. As for Spark, the distance of the newest two counts."""
        compacted = _compacted(self._entries())
        return compacted[-1] - compacted[-2] if len(compacted) > 1 else self._interval

    # -- reading -----------------------------------------------------------------------------------------------------

    def newest_batch(self, *, whole: bool = False) -> int:
        """Return the newest batch in the log, -1 if it has none. Raises ``Damaged`` if it has to be ``whole``, and lacks an entry that a reader
        needs.
        """
        entries = self._entries()
        if whole:
            self._visible(entries)
        return max(entries, default=NOTHING)

    def newest_file(self, batch: int) -> str | None:
        """Return the newest file of the sink when ``batch`` was written; None if it had none. Raises ``Damaged``."""
        entries = self._entries()
        for number in range(batch, NOTHING, -1):
            entry = self._entry(entries, number)
            last = self._read(entry, at_most=TAIL)[-1:]
            if last or entry.endswith(COMPACT):
                return last[0].path if last else None
        return None

    def files(self) -> list[SinkFile]:
        """Return all files that a reader of the sink sees, the oldest first. Raises ``Damaged``."""
        return [file for entry in self.visible() for file in self._read(entry)]

    def visible(self) -> list[str]:
        """Return the names of the entries that a reader of the sink needs, the oldest first. Raises ``Damaged``."""
        return self._visible(self._entries())

    def _visible(self, entries: dict[int, str]) -> list[str]:
        compacted = max(_compacted(entries), default=0)
        return [self._entry(entries, number) for number in range(compacted, max(entries, default=NOTHING) + 1)]

    def files_up_to(self, batch: int) -> list[SinkFile] | None:
        """Return the files that a reader saw when ``batch`` was written; None if Spark has deleted the entries of that time. Raises
        ``Damaged``.
        """
        entries = self._entries()
        numbers = range(max(_compacted(entries, batch), default=0), batch + 1)
        if not entries.keys() >= set(numbers):
            return None
        return [file for number in numbers for file in self._read(entries[number])]

    def written(self, since: int, after: int = NOTHING) -> list[tuple[int, SinkFile]]:
        """Return the files that the entries after ``after`` are the first to name, each with the batch that wrote it. Batches up to
        ``since`` may be reported as one. Raises ``Damaged``.
        """
        entries = self._entries()
        first = max(_compacted(entries, since), default=min(entries, default=0))
        if first > max(since, after, 0):
            raise self._lacks(first - 1)
        found: dict[str, tuple[int, SinkFile]] = {}
        for number in range(max(first, after + 1), max(entries, default=NOTHING) + 1):
            for file in self._read(self._entry(entries, number)):
                found.setdefault(file.path, (number, file))
        return list(found.values())

    def _entries(self) -> dict[int, str]:
        return entries_among(self.files_of.names(LOG))

    def _entry(self, entries: dict[int, str], number: int) -> str:
        """Return the name of an entry. The listing of a folder may lack an entry that was put meanwhile, so a missing one is looked for again."""
        name = entries.get(number) or self._entries().get(number)
        if name is None:
            raise self._lacks(number)
        return name

    def _lacks(self, number: int) -> Damaged:
        return Damaged(f"{self.folder}/{LOG}/{number} is missing; somebody or something deleted it")

    def _read(self, entry: str, at_most: int | None = None) -> list[SinkFile]:
        """Return the files that an entry names; with ``at_most``, those in its last bytes."""
        text, whole = self.files_of.read(f"{LOG}/{entry}", at_most)
        return files_in(text, f"{self.folder}/{LOG}/{entry}", whole=whole)

    # -- changing ----------------------------------------------------------------------------------------------------

    def delete_temporary_entries(self) -> None:
        """Delete temporary entries: an older driver may be about to rename one over an entry of ours."""
        self.files_of.delete([f"{LOG}/{name}" for name in self.files_of.hidden(LOG) if name.endswith(TEMPORARY)])

    def mark_batches_written(self, up_to: int, files: Sequence[SinkFile] = ()) -> None:
        """Put entries for the batches up to ``up_to`` that the sink does not have. Only the last one names ``files``: until it is
        there, the sink counts as empty.

        A query may begin to write to a new path after some batches, or leave out a batch. But Spark reads and compacts only a log without
        gaps.
        """
        newest = self.newest_batch()
        if newest >= up_to:
            return
        interval = self.interval
        compacted = (up_to + 1) // interval * interval - 1
        if compacted > newest:
            there = self.files()
            self.keep([*there, *(files if compacted == up_to else ())], compacted, there)
            newest = compacted
        for batch in range(newest + 1, up_to + 1):
            self._put(str(batch), files if batch == up_to else ())

    def keep(self, files: Sequence[SinkFile], batch: int, before: Sequence[SinkFile] | None = None) -> None:
        """Let the log end with ``batch``, and name only ``files``. ``batch`` is the number of a compacted entry.

        The compacted entry before it is written, too: Spark takes the distance of the newest two as the distance of all, and an older entry
        would give another one. It names ``before``, or else ``files``. If the interval has changed since ``batch`` was decided, the
        distance is the greatest one that divides ``batch + 1``.
        """
        interval = next(number for number in range(self.interval, 0, -1) if (batch + 1) % number == 0)
        if batch >= interval:
            self._put(f"{batch - interval}{COMPACT}", files if before is None else before)
        self._put(f"{batch}{COMPACT}", files)

    def next_number(self, begun: int = NOTHING) -> int:
        """Return a number at which ``keep`` may let the log end: no driver has begun it, nor the batch that is compacted before it.
        ``begun`` is the newest batch that a driver has begun, or the newest in the log if that is greater.
        """
        return next_number(max(begun, self.newest_batch()), self.interval)

    def _put(self, entry: str, files: Iterable[SinkFile]) -> None:
        """Write an entry as Spark does, unless it is there."""
        self.files_of.put(f"{LOG}/{entry}", "\n".join((HEADER, *(file.line for file in files))))

    # -- its files ---------------------------------------------------------------------------------------------------

    def below(self, file: SinkFile) -> str:
        """Return the path of a file below the sink, encoded. Raises ``Damaged`` if that is not a data file of the sink."""
        return "/".join(quote(name, safe=_NOT_QUOTED) for name in self._names(file.path))

    def key(self, below: str) -> str:
        """Return the key of a path that ``below`` returned. Raises ``Damaged`` if it is not a data file of the sink, or lies beyond a link."""
        if not _PATH.fullmatch(below):
            raise self._foreign(below)
        key = "/".join(self._refuse_foreign(below, _walk(unquote(below))))
        self.files_of.refuse_link(key)
        return key

    def _names(self, path: str) -> Sequence[str]:
        """Return the names below the sink that lead to a file of the log. Raises ``Damaged`` if they lead out of it, or to a file that is
        no data.
        """
        there, names = decoded(path)
        own, above = walked(self.folder)
        if there != own or names[: len(above)] != above:
            raise self._foreign(path)
        return self._refuse_foreign(path, names[len(above) :])

    def _refuse_foreign(self, path: str, below: Sequence[str]) -> Sequence[str]:
        """Return the names that lead to a data file. They are decoded: ``%2e%2e`` leads out as well, and ``%5fspark_metadata`` is the log."""
        if not below or below[0] == LOG or below[0].startswith(REWOUND) or any(name.startswith(".") for name in below):
            raise self._foreign(path)
        return below

    def _foreign(self, path: str) -> Damaged:
        return Damaged(
            f"{path!r} is no data file of the sink {self.folder}, and the log there or the checkpoint names it; somebody changed one of them."
            " Nothing was done with that file"
        )


def next_number(begun: int, interval: int) -> int:
    """Return the number of the second batch after ``begun`` that is compacted, if one in ``interval`` is."""
    return ((begun + 1) // interval + 2) * interval - 1


def entries_among(names: Iterable[str]) -> dict[int, str]:
    """Return the entries of a log by their numbers; other names mean nothing to Spark. If a number has two entries, the compacted one counts."""
    return {int(match[1]): match[0] for match in map(ENTRY.fullmatch, sorted(names)) if match}


def _compacted(entries: Mapping[int, str], up_to: float = math.inf) -> list[int]:
    """Return the numbers of the compacted entries, the lowest first."""
    return sorted(number for number, name in entries.items() if name.endswith(COMPACT) and number <= up_to)


def files_in(text: str, what: str, *, whole: bool = True) -> list[SinkFile]:
    """Return the files that an entry names; if it is not ``whole``, its first line is a part of one. Raises ``Damaged``, naming ``what``."""
    with readable(what):
        lines = logged_lines(text) if whole else text.split("\n")[1:]
        return [SinkFile(str(loads(line)["path"]), line) for line in lines if line]


def refuse_other_size(path: str, found: int, size: int) -> None:
    """Raise ``Damaged`` if a file that was moved to ``path`` has not the size that it had."""
    if found != size:
        raise Damaged(f"{path} has {found} bytes, and had {size} when the sink's log named it; somebody changed it")


def walked(uri: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return scheme and host of a URI that is not encoded, and the names in its path. Hadoop writes one slash after ``file:``, or three.
    Its names of S3 mean the same.
    """
    scheme, _, rest = uri.partition(":")
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    return (re.sub("^s3[an]$", "s3", scheme.lower()), host), _walk(path)


def _walk(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)


def decoded(path: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return what ``walked`` returns for a path that is encoded, as in Spark's logs. A path with a query or a fragment leads nowhere: Spark
    writes no such path, and Hadoop would read only a part of it.
    """
    return walked(unquote(path) if _PATH.fullmatch(path) else "")
