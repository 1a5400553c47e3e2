"""Every reader of stored objects: hurt bytes are refused by a typed error, or can be written again. Runs anywhere."""

from __future__ import annotations

import random

import pytest

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.records import Record, canonical
from tests.fuzz.mutations import STORED, attack, hurt, short_and_long
from tests.fuzz.readers import reader

LONGEST_ERROR = 3000  # characters


def to_bytes(record: Record | Entry) -> bytes:
    return canonical({"v": 1, **record.to_json()}) if isinstance(record, Record) else record.to_bytes()


@pytest.mark.parametrize("name", STORED)
@short_and_long(35, 8_000)
def test_hurt_object_is_refused_by_a_typed_error_or_can_be_written_again(name: str, inputs: int) -> None:
    read, others = reader(name), list(STORED.values())

    def attack_reader(seed: str) -> None:
        try:
            record = read(hurt(STORED[name], random.Random(seed), others))
        except CheckpointError as error:
            text = str(error)
        else:
            written = to_bytes(record)
            text = "" if to_bytes(read(written)) == written else "it is another object when it is read again"
        assert len(text) < LONGEST_ERROR
        assert not text.startswith("it is another")

    attack(attack_reader, name, inputs)
