"""Which subtask holds which keys, by Flink's key groups. Pure. Runs anywhere.

The keys of a keyed state fall into ``max_parallelism`` key groups, and a subtask holds a range of these. So another number of
subtasks needs no look at any key: each new one reads the parts of the old ones' ranges that are its own by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_checkpoint_provider.checkpoint.errors import InvalidConfig, MaxParallelismMismatch

LOWEST_DEFAULT = 128  # leaves a small job room to grow
HIGHEST = 32_768

_INT = 0xFFFF_FFFF  # Java's int


def key_group(key_hash: int, max_parallelism: int) -> int:
    """The group of a key; ``key_hash`` is its hash, a signed 32-bit number."""
    _check(max_parallelism, "max_parallelism")
    return murmur(key_hash) % max_parallelism


def subtask(group: int, max_parallelism: int, parallelism: int) -> int:
    """Which of ``parallelism`` subtasks holds ``group``."""
    _check_both(max_parallelism, parallelism)
    return group * parallelism // max_parallelism


def range_of(index: int, max_parallelism: int, parallelism: int) -> range:
    """The groups that subtask ``index`` of ``parallelism`` holds."""
    _check_both(max_parallelism, parallelism)
    start = (index * max_parallelism + parallelism - 1) // parallelism
    last = ((index + 1) * max_parallelism - 1) // parallelism
    return range(start, last + 1)


def ranges(max_parallelism: int, parallelism: int) -> tuple[range, ...]:
    """The groups of each subtask; together they are all groups, each once."""
    return tuple(range_of(index, max_parallelism, parallelism) for index in range(parallelism))


def parts(mine: range, old: Iterable[range]) -> dict[int, range]:
    """What a subtask with the groups ``mine`` reads: the index of each old subtask that holds some of them, and which."""
    found = {index: range(max(mine.start, one.start), min(mine.stop, one.stop)) for index, one in enumerate(old)}
    return {index: part for index, part in found.items() if part}


def default_max_parallelism(parallelism: int) -> int:
    """For a job that does not say: half as much again as it needs now, up to the next power of two; 128 to 32,768."""
    _check(parallelism, "parallelism")
    needed = parallelism + parallelism // 2
    return min(max(1 << (needed - 1).bit_length(), LOWEST_DEFAULT), HIGHEST)


def agreed_max_parallelism(recorded: Mapping[str, int], parallelism: int, wanted: int | None = None) -> int:
    """With how many key groups a job goes on. It is fixed for the life of a keyed state.

    :param recorded: of each restored state, by uid; all those that the subtasks hold together.
    :param wanted: what the job says itself; None adopts what is recorded.
    """
    _check(parallelism, "parallelism")
    if wanted is not None:
        _check_both(wanted, parallelism)
    if not recorded:
        return default_max_parallelism(parallelism) if wanted is None else wanted
    said = ", ".join(f"state '{uid}' {number}" for uid, number in sorted(recorded.items()))
    if len(set(recorded.values())) > 1:
        raise MaxParallelismMismatch(
            f"states of one application were written with different numbers of key groups ({said}), so their keys lie on different"
            " subtasks; nothing was changed. Give them to applications of their own, or restore a checkpoint from before they met"
        )
    (number,) = set(recorded.values())
    if number < parallelism:
        raise MaxParallelismMismatch(
            f"the job has {parallelism} subtasks, but its state was written with fewer key groups ({said}): some subtasks would hold"
            f" nothing; nothing was changed. Run it with {number} subtasks at most"
        )
    if wanted not in (None, number):
        raise MaxParallelismMismatch(
            f"max_parallelism={wanted}, but the state was written with another number of key groups ({said}): keys would not be found"
            f" again; nothing was changed. Leave max_parallelism out, or write {number}"
        )
    return number


def murmur(code: int) -> int:
    """Flink's hash of a hash: MurmurHash3 of one 32-bit number, seed 0, without its sign."""
    code = (code * 0xCC9E2D51) & _INT
    code = (_rotate(code, 15) * 0x1B873593) & _INT
    code = (_rotate(code, 13) * 5 + 0xE6546B64) & _INT
    code = _mix(code ^ 4)  # the length in bytes
    if code < 1 << 31:
        return code
    return (-code) & _INT if code != 1 << 31 else 0


def _mix(code: int) -> int:
    code = ((code ^ (code >> 16)) * 0x85EBCA6B) & _INT
    code = ((code ^ (code >> 13)) * 0xC2B2AE35) & _INT
    return code ^ (code >> 16)


def _rotate(code: int, by: int) -> int:
    return ((code << by) | (code >> (32 - by))) & _INT


def _check(number: int, name: str) -> None:
    if not 0 < number <= HIGHEST:
        raise InvalidConfig(f"{name}={number}: write a number from 1 to {HIGHEST}")


def _check_both(max_parallelism: int, parallelism: int) -> None:
    _check(max_parallelism, "max_parallelism")
    _check(parallelism, "parallelism")
    if max_parallelism < parallelism:
        raise InvalidConfig(
            f"max_parallelism={max_parallelism} is below the number of subtasks, {parallelism}: write {parallelism} at least"
        )
