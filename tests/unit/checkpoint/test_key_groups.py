"""Key groups: which keys fall into which, which subtask holds which, and what a job with another number of subtasks reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.checkpoint import key_groups
from airflow_checkpoint_provider.checkpoint.errors import CheckpointError, InvalidConfig, MaxParallelismMismatch
from airflow_checkpoint_provider.checkpoint.key_groups import agreed_max_parallelism, default_max_parallelism

HASHES = st.integers(-(2**31), 2**31 - 1)
NUMBERS = st.integers(1, key_groups.HIGHEST)


@st.composite
def jobs(draw: st.DrawFn, subtasks: int = 300) -> tuple[int, int]:
    """Number of key groups, number of subtasks."""
    parallelism = draw(st.integers(1, subtasks))
    return draw(st.integers(parallelism, key_groups.HIGHEST)), parallelism


# -- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key_hash", "murmured"),
    [
        (0, 0x2362F9DE),  # the published values of MurmurHash3 for four bytes, seed 0
        (-1, 0x76293B50),
        (0x87654321 - 2**32, -(0xF55B516B - 2**32)),  # a negative result loses its sign
        (int.from_bytes(b"test", "little"), -(0xBA6BD213 - 2**32)),
    ],
)
def test_the_hash_is_murmur_without_its_sign(key_hash: int, murmured: int) -> None:
    assert key_groups.murmur(key_hash) == murmured
    assert key_groups.key_group(key_hash, 128) == murmured % 128


def test_the_one_number_that_has_no_positive_counterpart_is_zero() -> None:
    """-2**31 cannot be negated in 32 bits. Murmur is a bijection: exactly one hash comes to it."""
    assert key_groups.murmur(_unmurmured(0x8000_0000)) == 0


def _unmurmured(code: int) -> int:
    """The 32-bit number whose MurmurHash3 is ``code``: each step undone, the last first."""
    wide = 1 << 32

    def unshifted(number: int, by: int) -> int:
        found = number
        for _ in range(32 // by):
            found = number ^ (found >> by)
        return found

    def rotated_back(number: int, by: int) -> int:
        return ((number >> by) | (number << (32 - by))) % wide

    code = unshifted(code, 16) * pow(0xC2B2AE35, -1, wide) % wide
    code = unshifted(unshifted(code, 13) * pow(0x85EBCA6B, -1, wide) % wide, 16) ^ 4
    code = rotated_back((code - 0xE6546B64) * pow(5, -1, wide) % wide, 13)
    return rotated_back(code * pow(0x1B873593, -1, wide) % wide, 15) * pow(0xCC9E2D51, -1, wide) % wide


@given(HASHES, jobs())
def test_each_key_is_on_the_subtask_that_holds_its_group(key_hash: int, job: tuple[int, int]) -> None:
    group = key_groups.key_group(key_hash, job[0])
    assert group in key_groups.range_of(key_groups.subtask(group, *job), *job)


# -- ranges --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism", "ranges"),
    [
        (1, 1, [(0, 0)]),
        (4, 4, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        (5, 2, [(0, 2), (3, 4)]),
        (10, 3, [(0, 3), (4, 6), (7, 9)]),
        (10, 4, [(0, 2), (3, 4), (5, 7), (8, 9)]),
        (128, 1, [(0, 127)]),
        (128, 3, [(0, 42), (43, 85), (86, 127)]),
        (32_768, 2, [(0, 16_383), (16_384, 32_767)]),
    ],
)
def test_which_groups_a_subtask_holds(max_parallelism: int, parallelism: int, ranges: list[tuple[int, int]]) -> None:
    """First and last, as Flink counts them."""
    assert [(one[0], one[-1]) for one in key_groups.ranges(max_parallelism, parallelism)] == ranges


@given(jobs())
def test_ranges_hold_each_group_once_in_order_and_evenly(job: tuple[int, int]) -> None:
    ranges = key_groups.ranges(*job)
    assert list(chain.from_iterable(ranges)) == list(range(job[0]))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    for index, one in enumerate(ranges):
        assert {key_groups.subtask(group, *job) for group in (one[0], one[-1])} == {index}


@pytest.mark.parametrize(
    ("mine", "old", "found"),
    [
        (range(4), [range(4), range(4, 8)], {0: range(4)}),  # unchanged
        (range(8), [range(4), range(4, 8)], {0: range(4), 1: range(4, 8)}),  # fewer subtasks: whole ones
        (range(2, 4), [range(4), range(4, 8)], {0: range(2, 4)}),  # more subtasks: a part of one
        (range(3, 6), [range(4), range(4, 8)], {0: range(3, 4), 1: range(4, 6)}),  # parts of two
        (range(8, 9), [range(4), range(4, 8)], {}),  # nobody held it
    ],
)
def test_what_a_new_subtask_reads(mine: range, old: list[range], found: dict[int, range]) -> None:
    assert key_groups.parts(mine, old) == found


@given(st.integers(1, 64), st.integers(1, 64), st.integers(64, 1024))
def test_after_rescaling_each_group_is_read_once_by_who_holds_it(before: int, after: int, groups: int) -> None:
    old = key_groups.ranges(groups, before)
    read = [key_groups.parts(mine, old) for mine in key_groups.ranges(groups, after)]
    assert list(chain.from_iterable(part for one in read for part in one.values())) == list(range(groups))
    assert all(set(part) <= set(old[index]) for one in read for index, part in one.items())


# -- how many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "number"),
    [
        (1, 128),  # 128 at least
        (85, 128),  # 85 + 42 = 127
        (86, 256),  # 129: the next power of two
        (170, 256),  # 255
        (171, 256),  # 171 + 85 = 256 is one
        (172, 512),  # 258
        (21_845, 32_768),
        (32_768, 32_768),  # 32,768 at most
    ],
)
def test_how_many_groups_where_nobody_says(parallelism: int, number: int) -> None:
    assert default_max_parallelism(parallelism) == number
    assert agreed_max_parallelism({}, parallelism) == number


@pytest.mark.parametrize(
    ("rule", "recorded", "parallelism", "wanted", "number"),
    [
        ("nothing recorded: what the job says", {}, 4, 100, 100),
        ("the job does not say: what is recorded", {"totals": 100}, 4, None, 100),
        ("both say the same", {"totals": 100}, 4, 100, 100),
        ("several states of one number", {"totals": 100, "seen": 100}, 4, None, 100),
        ("as many subtasks as groups", {"totals": 100}, 100, None, 100),
        ("what is recorded, not what the number of subtasks would give", {"totals": 128}, 100, None, 128),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_contract_holds(
    rule: str, recorded: Mapping[str, int], parallelism: int, wanted: int | None, number: int
) -> None:
    assert agreed_max_parallelism(recorded, parallelism, wanted) == number


@pytest.mark.parametrize(
    ("rule", "recorded", "parallelism", "wanted", "said"),
    [
        ("another number than recorded", {"totals": 128}, 4, 64, r"max_parallelism=64, .* \(state 'totals' 128\)"),
        ("more subtasks than groups", {"totals": 8}, 9, None, "9 subtasks, .* Run it with 8 subtasks at most"),
        ("states that differ", {"b": 8, "a": 16}, 4, None, r"\(state 'a' 16, state 'b' 8\)"),
        ("states that differ, whatever the job says", {"a": 16, "b": 8}, 4, 16, "different numbers of key groups"),
    ],
    ids=lambda one: one if isinstance(one, str) and " " in one else "",
)
def test_the_contract_is_broken(
    rule: str, recorded: Mapping[str, int], parallelism: int, wanted: int | None, said: str
) -> None:
    with pytest.raises(MaxParallelismMismatch, match=said) as refused:
        agreed_max_parallelism(recorded, parallelism, wanted)
    assert "nothing was changed" in refused.value.message


@pytest.mark.parametrize(
    ("parallelism", "wanted"), [(0, None), (-1, None), (32_769, None), (1, 0), (1, 32_769), (5, 4)]
)
def test_numbers_that_cannot_hold(parallelism: int, wanted: int | None) -> None:
    with pytest.raises(InvalidConfig):
        agreed_max_parallelism({}, parallelism, wanted)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_ranges_are_refused_where_the_numbers_cannot_hold(max_parallelism: int, parallelism: int) -> None:
    if 0 < parallelism <= max_parallelism:
        assert len(key_groups.ranges(max_parallelism, parallelism)) == parallelism
    else:
        with pytest.raises(CheckpointError):
            key_groups.range_of(0, max_parallelism, parallelism)


@given(NUMBERS)
def test_the_default_leaves_room_to_grow(parallelism: int) -> None:
    number = default_max_parallelism(parallelism)
    assert number.bit_count() == 1
    assert number >= min(1.5 * parallelism - 0.5, key_groups.HIGHEST)
    assert number == 128 or number // 2 < 1.5 * parallelism
