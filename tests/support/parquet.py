"""Parquet files as bytes, and bits that are turned over in them. Runs anywhere."""

from __future__ import annotations

import io

import pyarrow
import pyarrow.parquet


def parquet_file(rows: int, **options: object) -> bytes:
    """Return a file with several types and pages, with a checksum in each page and with indexes of the pages."""
    numbers = list(range(rows))
    table = pyarrow.table(
        {
            "id": numbers,
            "carrier": [f"carrier {number % 5}" for number in numbers],
            "delay": [None if number % 3 else number / 7 for number in numbers],
            "stops": [[number, number + 1] for number in numbers],
            "late": [number % 2 == 0 for number in numbers],
        }
    )
    file = io.BytesIO()
    known = {
        "write_page_checksum": True,
        "write_page_index": True,
        "data_page_size": 1024,
        "row_group_size": max(rows // 2, 1),
    }
    pyarrow.parquet.write_table(table, file, **known | options)
    return file.getvalue()


def flipped(body: bytes, place: int, bit: int = 0) -> bytes:
    """Return ``body`` with one bit turned over."""
    return body[:place] + bytes([body[place] ^ 1 << bit]) + body[place + 1 :]
