"""The files of a query under other numbers, for a query that goes back. Runs anywhere.

A query that goes back never uses the number of a batch again: an older driver may still write under it. So the files of the
checkpoint get higher numbers. Spark finds all of them by name: ``offsets/N``, ``commits/N``, and version N+1 of the state. The logs
of the sources have numbers of their own, which stay.

Two things have no file, because Spark begins with them: the offsets before batch 0, and version 0 of the state. Under other numbers each of
them needs a file.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.location.files import NO_OFFSET, VERSION
from airflow_checkpoint_provider.location.foreign import NUMBER

_BATCH = re.compile(rf"(offsets|commits)/({NUMBER})")
EMPTY_HASH_MAP = (
    b"LZ4Block\x15\x04\x00\x00\x00\x04\x00\x00\x00\xdb\x80M\x08\xff\xff\xff\xff"
    b"LZ4Block\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)
"""A snapshot of the HDFS-backed store without a key, as Spark 4.2 writes it: the number -1, compressed by LZ4."""
CODEC = "spark.sql.streaming.stateStore.compression.codec"
LZ4 = "lz4"


def renumbered(name: str, by: int) -> str:
    """Return the name of a file of a location when ``by`` is added to the numbers of all batches."""
    if batch := _BATCH.fullmatch(name):
        return f"{batch[1]}/{int(batch[2]) + by}"
    if version := VERSION.fullmatch(name):
        return f"{version[1]}/{int(version[2]) + by}.{version[3]}"
    return name


def offsets_before(body: bytes) -> bytes:
    """Return the offsets before batch 0, whose offsets are ``body``: no source was read."""
    version, metadata, *sources = body.decode().split("\n")
    return "\n".join((version, metadata, *(NO_OFFSET for _ in sources))).encode()


def empty_snapshots(names: Iterable[str], by: int, committed: int, codec: str | None) -> dict[str, bytes]:
    """Return an empty snapshot for each state in the files ``names`` that has no snapshot up to batch ``committed``. ``by`` is added to its
    number. ``codec`` is the codec that compresses the state.

    Raises ``NotSupportedYet`` for a state whose files are not compressed by LZ4.
    """
    versions = [match for name in names if (match := VERSION.fullmatch(name))]
    snapshots = [match for match in versions if match[3] in ("snapshot", "zip")]
    whole = {match[1] for match in snapshots if int(match[2]) <= committed + 1}
    kinds = {match[1]: match[3] for match in versions if match[1] not in whole and match not in snapshots}
    if "delta" in kinds.values() and codec != LZ4:
        raise NotSupportedYet(
            f"the state of the checkpoint has no snapshot yet, and is compressed by {codec}. This version can only go back to"
            f" such a checkpoint with {LZ4}, Spark's default. Name a newer checkpoint"
        )
    bodies = {"delta": ("snapshot", EMPTY_HASH_MAP), "changelog": ("zip", _empty_rocksdb())}
    files = ((folder, *bodies[kind]) for folder, kind in kinds.items())
    return {f"{folder}/{by}.{ending}": body for folder, ending, body in files}


def _empty_rocksdb() -> bytes:
    """Return a snapshot of the RocksDB store without a key: a list of files that names none."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[],"numKeys":0}')
    return body.getvalue()
