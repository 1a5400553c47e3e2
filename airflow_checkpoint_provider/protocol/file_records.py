"""The files of states: a file, and the file set that one write of one attempt filled. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.fields import FileName, FileSetPath, Number, Size
from airflow_checkpoint_provider.protocol.records import Record, added


@dataclass(frozen=True, kw_only=True)
class Footer(Record):
    """The last ``bytes`` bytes of a Parquet file, after its pages: indexes and footer. ``checksum`` is their CRC-32 in hex."""

    bytes: Number
    checksum: str


@dataclass(frozen=True, kw_only=True)
class File(Record):
    """A file of a file set. ``checksum`` is the SHA-256 in hex of a file that the script keeps; Spark's rows have checksums of their own."""

    name: FileName
    bytes: Size
    rows: Size
    checksum: str | None = None
    footer: Footer | None = added()


@dataclass(frozen=True, kw_only=True)
class FileSet(Record):
    """The files of one snapshot of one state. ``path`` is relative to the history, or to the savepoint's directory.

    ``origin`` is the path where the rows were first written, if they were copied since.
    """

    path: FileSetPath
    files: tuple[File, ...] = ()
    origin: FileSetPath | None = added()

    @property
    def identity(self) -> str:
        """Return a text that is equal for the same rows, wherever their copies lie."""
        return self.origin or self.path

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)
