"""One flipped bit in each kind of stored object: it is what was written, or a typed error that names the object.

Rows as Spark reads them: ``tests/integration/spark/test_flipped_bits.py``. Runs anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.files import export_pairs, verify
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, read_beat
from airflow_checkpoint_provider.coordinator.restore import examine
from airflow_checkpoint_provider.coordinator.savepoint_target import (
    check_claim,
    open_savepoint,
    put_claim,
    put_metadata,
)
from airflow_checkpoint_provider.errors import AlreadyClaimed, CheckpointError, Damaged
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import SavepointPointer, file_set_path
from airflow_checkpoint_provider.storage import MemoryStore, copy_all
from airflow_checkpoint_provider.storage.memory import named
from tests.support.acknowledgements import acknowledgement, driver, stage, value
from tests.support.footers import with_footers
from tests.support.histories import at
from tests.support.journals import KEYS, open_journal
from tests.support.parquet import flipped, parquet_file

FLIPS = 200
NAME = "flipped bits"
ROWS = 200
BODY = parquet_file(ROWS, row_group_size=ROWS)
PATH = file_set_path("clean", 1, "n0nce")
PART = f"{KEYS.file_set(PATH)}/part-0.parquet"
OWNER = "another 1ncarnation"
PENDING = 2


@cache
def written() -> tuple[dict[str, bytes], SavepointPointer, int]:
    """Return the objects of a history with a stage, a value, a savepoint that is claimed and a heartbeat, its savepoint, and the size of the
    footer. Its second checkpoint is acknowledged, and not sealed yet."""
    store = named(NAME)
    coordinator = driver(store)
    store.create(PART, BODY)
    files = with_footers(store, KEYS.file_set(PATH), [File(name="part-0.parquet", bytes=len(BODY), rows=ROWS)])
    clean = stage("clean", 1, made_of=FileSet(path=PATH, files=files))
    coordinator.trigger(Request(token="one", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(1, clean, value("count", 1, {"late": 7, "share": 0.5, "name": "Größe"})))
    coordinator.complete(1)
    pointer = SavepointPointer(store.uri, "savepoint-flights-1-9f3c")
    sealed = coordinator.state.retained[0]
    states = coordinator.read_seal(sealed).states.values()
    copy_all(store, store, export_pairs(states, KEYS, pointer.keys))
    put_metadata(store, KEYS.seal(1), sealed.digest, store, pointer)
    put_claim(store, pointer, OWNER, "orders, task restore", at(4))
    coordinator.trigger(Request(token="two", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(PENDING, clean, value("count", 1, {"late": 8})))
    Heart(store, KEYS.attempt_beat(1), Beat(epoch=1, activity="stage 'clean'", fraction=0.5)).pulse()
    assert files[0].footer
    return dict(store.objects), pointer, files[0].footer.bytes


# -- what a reader of each kind gets -------------------------------------------------------------------------------------


def restored(store: MemoryStore) -> Any:
    coordinator = Coordinator(open_journal(store))
    state = coordinator.journal.catch_up()
    found = examine(coordinator, state, state.restore_point())
    return state, found.seal


def completed(store: MemoryStore) -> Any:
    """Another process seals the pending checkpoint from its acknowledgement."""
    coordinator = Coordinator(open_journal(store))
    coordinator.journal.catch_up()
    coordinator.complete(PENDING)
    checkpoint = coordinator.state.checkpoint(PENDING)
    assert checkpoint
    return coordinator.read_seal(checkpoint)


def savepoint(store: MemoryStore) -> Any:
    opened = open_savepoint(written()[1], store)
    return opened.seal, opened.verify()


def claimed(store: MemoryStore) -> Any:
    """Another history wants to own the savepoint."""
    with pytest.raises(AlreadyClaimed) as refused:
        check_claim(store, written()[1], "a third 1ncarnation")
    return refused.value.about


def beat(store: MemoryStore) -> Any:
    return read_beat(store, KEYS.attempt_beat(1))


def rows(store: MemoryStore) -> Any:
    coordinator = Coordinator(open_journal(store))
    state = coordinator.journal.catch_up()
    seal = coordinator.read_seal(state.retained[0])
    return verify(store, KEYS, seal.states.values(), deep=True)


def anywhere(body: bytes, dice: random.Random) -> int:
    return dice.randrange(len(body))


def in_pages(body: bytes, dice: random.Random) -> int:
    return dice.randrange(4, len(body) - written()[2])


def behind_pages(body: bytes, dice: random.Random) -> int:
    return dice.randrange(len(body) - written()[2], len(body))


Read = Callable[[MemoryStore], Any]
Choose = Callable[[bytes, random.Random], int]
KINDS: dict[str, tuple[Callable[[], list[str]], Read, Choose]] = {
    "journal": (lambda: [key for key in written()[0] if "/journal/" in key], restored, anywhere),
    "seal": (lambda: [KEYS.seal(1)], restored, anywhere),
    "footer": (lambda: [PART], restored, behind_pages),
    "rows": (lambda: [PART], rows, in_pages),
    "acknowledgement": (lambda: [KEYS.acknowledgement(PENDING, "")], completed, anywhere),
    "savepoint": (lambda: [written()[1].metadata], savepoint, anywhere),
    "claim": (lambda: [written()[1].claim], claimed, anywhere),
    "heartbeat": (lambda: [KEYS.attempt_beat(1)], beat, anywhere),
}


def outcome(read: Read, objects: dict[str, bytes]) -> Any:
    """Return what a reader gets of a copy: a value, or a typed error."""
    store = named(NAME)  # the savepoint's pointer names it
    store.objects = dict(objects)
    try:
        return read(store)
    except CheckpointError as error:
        return error


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bit_is_damage_that_names_the_object(kind: str) -> None:
    """A bit in the name of a checksum changes nothing else, so the object is read as it was written. A damaged heartbeat is none."""
    keys, read, choose = KINDS[kind]
    objects = written()[0]
    whole = outcome(read, objects)
    assert not isinstance(whole, CheckpointError)
    dice = random.Random(kind)
    damaged = 0
    for _ in range(FLIPS):
        key = dice.choice(keys())
        hurt = objects | {key: flipped(objects[key], choose(objects[key], dice), dice.randrange(8))}
        first, second = outcome(read, hurt), outcome(read, hurt)
        assert str(first) == str(second), "a retry says the same"
        if isinstance(first, Damaged):
            assert key in first.message
        else:
            assert first in (whole, None) if kind == "heartbeat" else first == whole
        damaged += isinstance(first, Damaged) or first is None
    assert damaged >= 0.95 * FLIPS
