"""Offsets of Kafka: how Spark writes them, and which rows a broker lacks. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.protocol.kafka_offsets import GREATEST, gaps, kafka_offsets

DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"orders":{"0":120,"1":0},"clicks":{"0":7}}', {("orders", 0): 120, ("orders", 1): 0, ("clicks", 0): 7}),
        ("{}", {}),
        ('{"logOffset":3}', None),  # of a file source
        ("5", None),  # of the rate source
        ("-", None),  # of a source that a batch does not read
        (None, None),
        ('{"orders":{"0":-1}}', None),
        ('{"orders":{"0":true}}', None),
        ('{"orders":{"0":1.5}}', None),
        (f'{{"orders":{{"0":{GREATEST}}}}}', None),
        ('{"orders":{"none":1}}', None),
        ('{"orders":', None),
        ("[" * DEEP, None),
        ('{"orders":{"0":' + "9" * DEEP + "}}", None),
    ],
)
def test_offsets_are_read_only_as_spark_writes_them_for_kafka(
    text: str | None, offsets: dict[tuple[str, int], int] | None
) -> None:
    assert kafka_offsets(text) == offsets


ORDERS = ("orders", 3)


@pytest.mark.parametrize(
    ("earliest", "latest", "until", "gap"),
    [
        (120, 120, 120, None),  # nothing has arrived since
        (0, 500, 500, None),
        (0, None, 500, None),  # where it ends was not asked
        (150, 500, 120, "orders-3 begins with offset 150, and the query reads on at 120: 30 offsets are gone"),
        (None, None, 120, "orders-3 is not there, or the source does not name it (the query reads on at offset 120)"),
        (
            0,
            30,
            120,
            "orders-3 ends before offset 30, and the query reads up to 120: the topic was created again, or has lost its newest rows",
        ),
        (
            0,
            150,
            180,
            "orders-3 ends before offset 150, and the query reads up to 180: the topic was created again, or has lost its newest rows",
        ),
        (130, 30, 120, "orders-3 begins with offset 130, and the query reads on at 120: 10 offsets are gone"),
    ],
)
def test_partition_without_rows_that_are_needed_is_a_gap(
    earliest: int | None, latest: int | None, until: int, gap: str | None
) -> None:
    there = {} if earliest is None else {ORDERS: earliest}
    ends = None if latest is None else {ORDERS: latest}
    found = gaps(
        {ORDERS: 120, ("clicks", 0): 7}, there | {("clicks", 0): 7}, ends and ends | {("clicks", 0): 9}, {ORDERS: until}
    )
    assert [str(one) for one in found] == ([gap] if gap else [])


def test_partition_that_came_later_is_needed_from_its_first_row() -> None:
    assert gaps({ORDERS: 120}, {ORDERS: 0, ("orders", 4): 0}) == []
    (gap,) = gaps({ORDERS: 120}, {ORDERS: 0, ("orders", 4): 7})
    assert str(gap) == "orders-4 begins with offset 7, and the query reads on at 0: 7 offsets are gone"


def test_partition_that_came_with_the_batch_that_has_begun_must_hold_it() -> None:
    until = {ORDERS: 120, ("orders", 4): 30}
    assert gaps({ORDERS: 120}, {ORDERS: 0, ("orders", 4): 0}, {ORDERS: 120, ("orders", 4): 30}, until) == []
    gone, anew = (
        gaps({ORDERS: 120}, {ORDERS: 0} | there, {ORDERS: 120} | ends, until)
        for there, ends in (({}, {}), ({("orders", 4): 0}, {("orders", 4): 29}))
    )
    assert [gap.partition for gap in (*gone, *anew)] == [("orders", 4)] * 2
