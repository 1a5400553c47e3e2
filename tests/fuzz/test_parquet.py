"""Parquet files that are hurt: damage, and no other error, in bounded memory and reads. Runs anywhere."""

from __future__ import annotations

import random

import pytest

from airflow_checkpoint_provider.coordinator.parquet import GUESS, PIECE, Thrift, check_pages, footer_of
from airflow_checkpoint_provider.errors import Damaged
from tests.fuzz.mutations import attack, short_and_long
from tests.support.parquet import parquet_file

ROWS = 60
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "dictionaries": {"compression": "zstd"},
    "version 2": {"compression": "lz4", "data_page_version": "2.0"},
}
BODIES = {name: parquet_file(ROWS, **options) for name, options in OPTIONS.items()}


class File:
    """The bytes of a file, of which only a few may be read at a time and a few times all."""

    def __init__(self, body: bytes) -> None:
        self.body, self.read_bytes = body, 0

    def read(self, start: int, length: int) -> bytes:
        assert 0 <= start <= len(self.body)
        assert 0 < length <= PIECE
        self.read_bytes += min(length, len(self.body) - start)
        assert self.read_bytes <= 50 * len(self.body) + GUESS
        return self.body[start : start + length]


def check(body: bytes) -> None:
    for action in (lambda file: footer_of(file.read, len(body)), lambda file: check_pages(file.read, len(body), ROWS)):
        try:
            action(File(body))
        except Damaged as error:
            text = str(error)
        else:
            text = ""
        assert len(text) < 500


def hurt(body: bytes, chance: random.Random) -> bytes:
    """Return the file with a few bytes changed, mostly in its footer; numbers in it are mostly one byte or two."""
    begin = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(begin, len(body)) if chance.random() < 0.7 else chance.randrange(len(body))
        changed[at] = chance.choice([0, 1, 0x1C, 0x19, 0x7F, 0x80, 0xFF, changed[at] ^ 1, chance.randrange(256)])
    if chance.random() < 0.2:
        at, size = chance.randrange(len(body)), chance.randrange(1, 50)
        changed[at : at + size] = chance.choice([b"", b"\xff" * 9, chance.randbytes(size), changed[at : at + size] * 2])
    return bytes(changed)


@pytest.mark.parametrize("name", BODIES)
@short_and_long(70, 15_000)
def test_hurt_file_is_whole_or_damaged(name: str, inputs: int) -> None:
    attack(lambda seed: check(hurt(BODIES[name], random.Random(seed))), name, inputs)


def struct(body: bytes) -> bytes:
    return b"PAR1" + body + len(body).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    "footer",
    [
        b"\x19\xfc" + b"\xff" * 8 + b"\x7f",  # a list of 2^62 structs
        b"\x18" + b"\xff" * 8 + b"\x7f",  # text as long
        b"\x1b" + b"\xff" * 8 + b"\x7f" + b"\x11",  # a map as long
        b"\x16" + b"\xff" * 100,  # a number without an end
        b"\x1c" * 100_000,  # structs in each other
        b"\x19\x19" * 100_000,  # lists in each other
        b"\x19\xf3\x80\x80\x04" + b"\x00" * 50_000 + b"\x00",  # many small values, fewer than were told
        b"",
    ],
)
def test_footer_that_lies_about_its_sizes_is_damaged(footer: bytes) -> None:
    body = struct(footer)
    with pytest.raises(Damaged, match=r"cannot be read|outside of its data"):
        check_pages(File(body).read, len(body), ROWS)


def test_values_of_a_footer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_checkpoint_provider.coordinator.parquet.MOST_VALUES", 100)
    with pytest.raises(ValueError, match="more than 100 values"):
        Thrift(b"\x19\xf3\x7f" + b"\x00" * 1000).struct()
