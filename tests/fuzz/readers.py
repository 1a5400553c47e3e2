"""The readers of stored objects, by the names of their golden files. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock, DisposedStub
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal
from airflow_checkpoint_provider.protocol.records import Record, parse

Reader = Callable[[bytes], Record | Entry]
READERS: dict[str, Reader] = {
    "acknowledgement": Acknowledgement.from_bytes,
    "acknowledgement-footers": Acknowledgement.from_bytes,
    "acknowledgement-metrics": Acknowledgement.from_bytes,
    "acknowledgement-files": Acknowledgement.from_bytes,
    "acknowledgement-sinks": Acknowledgement.from_bytes,
    "acknowledgement-loops": Acknowledgement.from_bytes,
    "acknowledgement-keyed": Acknowledgement.from_bytes,
    "acknowledgement-parts": Acknowledgement.from_bytes,
    "seal": Seal.from_bytes,
    "heartbeat": lambda body: Beat.from_json(parse(body, "heartbeat")),
    "heartbeat-queries": lambda body: Beat.from_json(parse(body, "heartbeat")),
    "heartbeat-kafka": lambda body: Beat.from_json(parse(body, "heartbeat")),
    "savepoint-claimed": lambda body: ClaimLock.from_json(parse(body, "_claimed")),
    "savepoint-stub": lambda body: DisposedStub.from_json(parse(body, "_metadata")),
}


def _entry(body: bytes) -> Entry:
    read = Entry.from_bytes(body, "journal/0000000000000007")
    _ = read.closed
    return read


def reader(name: str) -> Reader:
    return READERS.get(name, _entry)
