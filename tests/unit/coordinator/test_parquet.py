"""The checksums of a Parquet file, whoever wrote it. Runs anywhere."""

from __future__ import annotations

import random

import pytest

from airflow_checkpoint_provider.coordinator.parquet import LONGEST_FOOTER, PIECE, Read, Thrift, check_pages, footer_of
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.records import crc_of
from tests.support.parquet import flipped, parquet_file

ROWS = 300
WRITERS: dict[str, dict[str, object]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "dictionaries": {"compression": "zstd"},
    "version 2": {"compression": "lz4", "data_page_version": "2.0"},
}
BODIES = {name: parquet_file(ROWS, **options) for name, options in WRITERS.items()}


def reading(body: bytes) -> Read:
    return lambda start, length: body[start : start + length]


def check(body: bytes, rows: int = ROWS) -> None:
    check_pages(reading(body), len(body), rows)


@pytest.mark.parametrize("body", BODIES.values(), ids=[*BODIES])
def test_whole_file_passes(body: bytes) -> None:
    check(body)


def test_column_of_many_megabytes_is_read_in_pieces() -> None:
    body = parquet_file(
        1_500_000, compression="none", use_dictionary=False, row_group_size=1_500_000, data_page_size=1 << 20
    )
    lengths: list[int] = []

    def read(start: int, length: int) -> bytes:
        lengths.append(length)
        return body[start : start + length]

    check_pages(read, len(body), 1_500_000)
    assert max(lengths) == PIECE
    assert sum(lengths) < 1.5 * len(body)


def test_file_without_rows_passes() -> None:
    body = parquet_file(0)
    check(body, 0)
    footer, rows = footer_of(reading(body), len(body))
    assert footer.bytes < len(body)
    assert rows == 0


def test_footer_is_all_that_lies_behind_the_pages() -> None:
    body = BODIES["plain"]
    footer, _ = footer_of(reading(body), len(body))
    alone = int.from_bytes(body[-8:-4], "little") + 8
    assert footer.bytes > alone  # with the indexes of the pages
    assert footer.checksum == crc_of(body[-footer.bytes :])


def test_long_footer_is_read_again_whole() -> None:
    body = parquet_file(20_000, data_page_size=64, row_group_size=200)
    footer, rows = footer_of(reading(body), len(body))
    assert rows == 20_000
    assert footer.bytes > 64 * 1024
    assert footer.checksum == crc_of(body[-footer.bytes :])
    check_pages(reading(body), len(body), 20_000)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_page_and_its_header_is_damage(bit: int) -> None:
    """Only the header of a dictionary of texts says what nothing else tells: the number of its values. A wrong number is an error
    of Spark."""
    body = parquet_file(30, **WRITERS["plain"], row_group_size=30)
    footer, _ = footer_of(reading(body), len(body))
    unnoticed = [place for place in range(4, len(body) - footer.bytes) if _passes(flipped(body, place, bit), 30)]
    assert unnoticed == []


def _passes(body: bytes, rows: int) -> bool:
    try:
        check(body, rows)
    except Damaged:
        return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_bytes_at_random_are_damage_and_no_other_error(seed: int) -> None:
    dice = random.Random(seed)
    body = bytearray(BODIES["dictionaries"])
    for _ in range(dice.choice([1, 5, 100])):
        body[dice.randrange(len(body))] = dice.randrange(256)
    for part in (bytes(body), bytes(body[: dice.randrange(len(body))]), dice.randbytes(500) + b"PAR1"):
        for action in (check, lambda part: footer_of(reading(part), len(part))):
            try:
                action(part)
            except Damaged as error:
                assert error.message  # noqa: PT017 - what is raised at all depends on the bytes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "does not end as a Parquet file"),
        (b"rows of a part file", "does not end as a Parquet file"),
        (b"\xff\xff\xff\x0fPAR1", "has a footer of .* bytes, more than the file has"),
        (b"PAR1" + b"\x1c" * 5000 + (5000).to_bytes(4, "little") + b"PAR1", "cannot be read"),
    ],
)
def test_what_is_no_parquet_file_is_damaged(body: bytes, message: str) -> None:
    with pytest.raises(Damaged, match=message):
        footer_of(reading(body), len(body))


def test_another_number_of_rows_is_damage() -> None:
    with pytest.raises(Damaged, match=f"holds {ROWS} rows, but 299 were written"):
        check_pages(reading(BODIES["plain"]), len(BODIES["plain"]), 299)


# -- lies that cost ------------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """Return a positive number as Thrift writes it."""
    value, encoded = value << 1, b""
    while value > 127:
        value, encoded = value >> 7, encoded + bytes([value & 127 | 128])
    return encoded + bytes([value])


def file_of(columns: int, length: int) -> bytes:
    """Return a file that says that each of its columns has the same bytes, as many as ``length`` says."""
    about = b"\x56" + number(1) + b"\x16" + number(1) + b"\x16" + number(length) + b"\x26" + number(4) + b"\x00"
    group = b"\x19" + bytes([columns << 4 | 12]) + (b"\x3c" + about + b"\x00") * columns + b"\x00"
    footer = b"\x36" + number(ROWS) + b"\x19\x1c" + group + b"\x00"
    return b"PAR1" + bytes(length) + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_columns_that_share_their_bytes_are_not_read() -> None:
    body, lengths = file_of(10, 1000), list[int]()

    def read(start: int, length: int) -> bytes:
        lengths.append(length)
        return body[start : start + length]

    with pytest.raises(Damaged, match="has columns that are longer than the file"):
        check_pages(read, len(body), ROWS)
    assert sum(lengths) == len(body)


def test_footer_that_is_too_long_is_not_read() -> None:
    tail = bytes(64 * 1024 - 8) + (LONGEST_FOOTER + 1).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(Damaged, match=f"has a footer of {LONGEST_FOOTER + 9} bytes, more than {LONGEST_FOOTER}"):
        footer_of(lambda start, length: tail, 1 << 40)


@pytest.mark.parametrize("bit", range(8))
def test_flipped_bit_in_the_number_of_a_dictionary_of_numbers_is_damage(bit: int) -> None:
    body = parquet_file(30, compression="none", row_group_size=30)
    dictionary = Thrift(body[4:])
    assert dictionary.struct()[7][1] == 30
    place = body.index(b"\x3c\x15\x3c", 4) + 2  # the header of a dictionary, and in it the number
    with pytest.raises(Damaged):
        check(flipped(body, place, bit), 30)
