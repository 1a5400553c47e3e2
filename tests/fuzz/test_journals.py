"""Journals with planted entries, stubs and boundaries: reading ends within a bounded number of reads. Runs anywhere."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.entry import By, Entry, closed_stub
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.keys import SEGMENT, Keys
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore
from tests.fuzz import lake
from tests.fuzz.mutations import STORED, attack, hurt, short_and_long

KEYS = lake.HISTORIES[2]
NUMBERS = [*range(6), *(k * SEGMENT + d for k in range(1, 10) for d in (-1, 0, 1)), 2**20 * SEGMENT, 2**52 * SEGMENT]
MOST_READS = 1000


class Reads(MemoryStore):
    """A store that refuses more reads than any journal of this size needs."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__("planted")
        self.objects, self.reads = objects, 0

    def read(self, key: str) -> bytes | None:
        self.reads += 1
        if self.reads > MOST_READS:
            raise lake.TooManyCalls
        return super().read(key)


def planted(chance: random.Random) -> dict[str, bytes]:
    """Return a journal that begins as it was written, with entries that nobody wrote: ordinary, hurt, stubs, closed."""
    base = lake.whole() if chance.random() < 0.5 else lake.compacted()
    objects = {key: body for key, body in base.items() if key.startswith(KEYS.journal)}
    first = Entry.from_bytes(objects[KEYS.entry(0)], "")
    bodies = list(objects.values())
    for _ in range(chance.randrange(1, 12)):
        number = chance.choice(NUMBERS)
        of = Entry.from_bytes(chance.choice(bodies), "")
        kinds: list[Entry] = [
            replace(of, n=number),
            replace(of, n=number, snapshot=of.snapshot or State(incarnation=first.inc, n=chance.choice(NUMBERS))),
            Entry(first.inc, number, "", "", {}, (), stub=True),
            closed_stub(State(incarnation=first.inc, n=chance.choice([number, number + 1, number + SEGMENT, -1]))),
        ]
        body = replace(chance.choice(kinds), n=number).to_bytes()
        objects[KEYS.entry(number)] = hurt(body, chance, list(STORED.values())) if chance.random() < 0.1 else body
    if chance.random() < 0.3:
        objects.pop(KEYS.entry(chance.choice(NUMBERS)), None)
    return objects


def attack_journal(seed: str) -> None:
    store = Reads(planted(random.Random(seed)))
    journal = Journal(store, Keys(KEYS.prefix), By("reader", "", ""))
    for look in (journal.catch_up, journal.catch_up, *[journal.poll] * 20):
        try:
            look()
        except CheckpointError:
            break


@short_and_long(70, 6_000)
def test_planted_journal_is_read_in_a_bounded_number_of_reads(inputs: int) -> None:
    attack(attack_journal, "journal", inputs)


@pytest.mark.parametrize("count", [1, 500])
def test_reads_of_a_boundary_far_away_are_few(count: int) -> None:
    """Boundaries have no gaps, so that they are searched by doubling, and found again by halving."""
    objects = dict(lake.compacted())
    boundary = Entry.from_bytes(objects[KEYS.entry(SEGMENT)], "")
    for number in range(1, count + 1):
        objects[KEYS.entry(number * SEGMENT)] = replace(boundary, n=number * SEGMENT).to_bytes()
    store = Reads(objects)
    assert Journal(store, KEYS, By("reader", "", "")).catch_up().n == count * SEGMENT
    assert store.reads < 25
