"""Ranges of key groups, and the hash of Spark's shuffle. The groups of keys themselves are in tests/integration/spark/test_key_groups.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.spark.loops.key_groups import murmur3, numbers_for
from tests.support.key_groups import file_of, groups_of


@given(st.integers(1, 300), st.integers(1, 500))
def test_each_group_is_in_the_range_of_its_file_alone(files: int, most: int) -> None:
    files = min(files, most)
    ranges = [groups_of(file, files, most) for file in range(files)]
    assert [group for one in ranges for group in one] == list(range(most))
    assert all(file_of(group, files, most) == file for file, one in enumerate(ranges) for group in one)


@pytest.mark.parametrize(
    ("operators", "most", "expected"),
    [
        (2, 128, [(0, 63), (64, 127)]),
        (3, 10, [(0, 3), (4, 6), (7, 9)]),
        (7, 8, [(0, 1), *((n, n) for n in range(2, 8))]),
    ],
)
def test_ranges_are_those_of_flink(operators: int, most: int, expected: list[tuple[int, int]]) -> None:
    """``KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex`` of Flink returns them."""
    assert [(one[0], one[-1]) for one in (groups_of(file, operators, most) for file in range(operators))] == expected


@pytest.mark.parametrize(("number", "hashed"), [(0, 933211791), (1, -559580957), (5, 1023896466), (1000, -14577491)])
def test_hash_is_that_of_sparks_shuffle(number: int, hashed: int) -> None:
    assert murmur3(number) == hashed


@pytest.mark.parametrize("partitions", [1, 2, 7, 128, 1000])
def test_there_is_a_number_for_each_partition(partitions: int) -> None:
    assert [murmur3(number) % partitions for number in numbers_for(partitions)] == list(range(partitions))
