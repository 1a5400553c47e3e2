"""The memory of a launch after a death for want of memory. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.policies.memory import (
    DRIVER_HEAP,
    DRIVER_OVERHEAD,
    EXECUTOR_HEAP,
    EXECUTOR_OVERHEAD,
    SHARE_ON_KUBERNETES,
    MemoryPlan,
    MemoryPolicy,
    NextMemory,
    in_words,
    literal_memory,
    mebibytes,
    memory_policy,
)

HEAP, OVERHEAD = "spark.driver.memory", "spark.driver.memoryOverhead"
OF_EXECUTOR, OVERHEAD_OF_EXECUTOR = "spark.executor.memory", "spark.executor.memoryOverhead"
DEFAULT = {HEAP: "1g", OF_EXECUTOR: "1g", OVERHEAD: "384m", OVERHEAD_OF_EXECUTOR: "384m"}


def plan(limit: str | None = None, factor: float = 1.5, **confs: str) -> MemoryPlan:
    """Return a plan in which ``driver`` and ``driver_overhead`` are configured, and those of executors."""
    named = {
        "driver": HEAP,
        "driver_overhead": OVERHEAD,
        "executor": OF_EXECUTOR,
        "executor_overhead": OVERHEAD_OF_EXECUTOR,
    }
    policy = MemoryPolicy(factor, mebibytes(limit, "memory_limit") if limit else None)
    return MemoryPlan(policy, {named[name]: size for name, size in confs.items()})


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [
        ("2g", 2048, "2g"),
        ("2G", 2048, "2g"),
        (" 2gb ", 2048, "2g"),
        ("1536m", 1536, "1536m"),
        ("1536", 1536, "1536m"),
        ("512k", 1, "1m"),
        ("1t", 2**20, "1024g"),
    ],
)
def test_sizes_are_read_as_spark_reads_them(text: str, size: int, shown: str) -> None:
    assert mebibytes(text, HEAP) == size
    assert in_words(size) == shown


@pytest.mark.parametrize("text", ["lots", "", "1.5g", "-1g", "0", "2gg", "2x", None, 16, "9" * 99 + "g"])
def test_what_is_no_size_is_refused_by_name(text: object) -> None:
    with pytest.raises(InvalidConfig, match=r"memory_limit=.* is not a size of memory"):
        mebibytes(text, "memory_limit")


@pytest.mark.parametrize(
    ("value", "factor"), [("1.5 x", 1.5), ("1.5x", 1.5), ("2", 2.0), (1.5, 1.5), (2, 2.0), ("100 x", 100.0)]
)
def test_factor(value: object, factor: float) -> None:
    assert memory_policy(value, None) == MemoryPolicy(factor)


@pytest.mark.parametrize(
    "value",
    ["0.5 x", "-1", "1 x", 1, 0, -1, True, "x", "", "1,5 x", "101 x", float("inf"), float("nan"), [], "1.5 times"],
)
def test_factor_that_raises_nothing_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"memory_after_oom=.*over 1"):
        memory_policy(value, None)


def test_off_by_default_and_a_limit_alone_is_refused() -> None:
    assert memory_policy(None, None) is None
    with pytest.raises(InvalidConfig, match="no effect without memory_after_oom="):
        memory_policy(None, "16g")


def test_limit_is_a_size() -> None:
    assert memory_policy("1.5 x", "16g") == MemoryPolicy(1.5, 16384)
    with pytest.raises(InvalidConfig, match="memory_limit='lots'"):
        memory_policy("1.5 x", "lots")


def test_limit_below_what_is_configured_is_refused() -> None:
    policy = MemoryPolicy(1.5, 1024)
    policy.check({})
    policy.check({HEAP: 1024})
    with pytest.raises(InvalidConfig, match=r"memory_limit='1g' is below spark.executor.memory=2g"):
        policy.check({HEAP: 1024, OF_EXECUTOR: 2048})
    with pytest.raises(InvalidConfig, match=r"below spark.driver.memory=1g"):
        plan("900m").check()  # Spark's default
    plan("900m", driver="512m", executor="512m").check()


def test_literal_memory_of_a_task() -> None:
    assert literal_memory({HEAP: "2g", OF_EXECUTOR: "{{ params.memory }}", "spark.app.name": "x"}) == {HEAP: 2048}
    with pytest.raises(InvalidConfig, match=HEAP):
        literal_memory({HEAP: "lots"})


# -- the next launch ---------------------------------------------------------------------------------------------------


def test_launch_without_a_death_records_what_it_has() -> None:
    assert plan().next({}, ()) == NextMemory(DEFAULT)
    assert plan(driver="2g").next({}, ()).raised == {}


@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (DRIVER_HEAP, {HEAP: "1536m"}),
        (DRIVER_OVERHEAD, {OVERHEAD: "576m"}),
        (EXECUTOR_HEAP, {OF_EXECUTOR: "1536m"}),
        (EXECUTOR_OVERHEAD, {OVERHEAD_OF_EXECUTOR: "576m"}),
        ("of a later version", {}),
    ],
)
def test_what_died_is_raised_from_what_the_dead_launch_had(cause: str, raised: dict[str, str]) -> None:
    assert plan().next(DEFAULT, {cause}) == NextMemory({**DEFAULT, **raised}, raised)


def test_several_causes_raise_each_its_own() -> None:
    assert plan(driver="2g").next({}, {DRIVER_HEAP, EXECUTOR_HEAP}).raised == {HEAP: "3g", OF_EXECUTOR: "1536m"}


def test_each_death_raises_once_and_what_was_raised_is_kept() -> None:
    first = plan(driver="2g").next({}, ())
    second = plan(driver="2g").next(first.used, {DRIVER_HEAP})
    third = plan(driver="2g").next(second.used, ())  # launch 2 failed for another reason
    fourth = plan(driver="2g").next(third.used, {DRIVER_HEAP})
    assert [launch.used[HEAP] for launch in (first, second, third, fourth)] == ["2g", "3g", "3g", "4608m"]
    assert third.raised == {HEAP: "3g"}


@pytest.mark.parametrize(("written", "used"), [("2500m", "3g"), ("3g", "3g"), ("4g", "4g"), ("1g", "3g")])
def test_larger_value_that_a_person_has_written_meanwhile_wins(written: str, used: str) -> None:
    launch = plan(driver=written).next({**DEFAULT, HEAP: "2g"}, {DRIVER_HEAP})
    assert launch.used[HEAP] == used
    assert launch.raised == ({} if written in ("3g", "4g") else {HEAP: "3g"})
    assert launch.held == ()


def test_at_the_limit_nothing_is_raised_further() -> None:
    limited = plan("2g")
    assert limited.next({**DEFAULT, HEAP: "1536m"}, {DRIVER_HEAP}).raised == {HEAP: "2g"}
    at_limit = limited.next({**DEFAULT, HEAP: "2g"}, {DRIVER_HEAP})
    assert (at_limit.used[HEAP], at_limit.raised, at_limit.held) == ("2g", {HEAP: "2g"}, (HEAP,))


def test_limit_that_a_person_has_lowered_holds() -> None:
    launch = plan("2g").next({**DEFAULT, HEAP: "3g"}, {DRIVER_HEAP})
    assert (launch.used[HEAP], launch.held) == ("2g", (HEAP,))


def test_overhead_follows_the_heap_unless_it_was_raised() -> None:
    """As in Spark: a tenth of the heap, at least 384 MiB."""
    assert plan(driver="8g").next({}, ()).used[OVERHEAD] == "819m"
    raised = plan(driver="8g").next({**DEFAULT, HEAP: "8g", OVERHEAD: "819m"}, {DRIVER_HEAP})
    assert raised.used[OVERHEAD] == "1228m"
    assert raised.raised == {HEAP: "12g"}
    assert plan(driver="8g", driver_overhead="2g").next({}, {DRIVER_OVERHEAD}).raised == {OVERHEAD: "3g"}


def test_overhead_by_the_confs_of_its_share() -> None:
    confs = {HEAP: "10g", "spark.driver.memoryOverheadFactor": "0.2", "spark.executor.minMemoryOverhead": "500m"}
    used = MemoryPlan(MemoryPolicy(2), confs).next({}, ()).used
    assert (used[OVERHEAD], used[OVERHEAD_OF_EXECUTOR]) == ("2g", "500m")
    used = MemoryPlan(MemoryPolicy(2), {}, SHARE_ON_KUBERNETES).next({}, ()).used
    assert used[OVERHEAD] == "409m"
    with pytest.raises(InvalidConfig, match="memoryOverheadFactor is not a number"):
        MemoryPlan(MemoryPolicy(2), {"spark.driver.memoryOverheadFactor": "much"}).check()


def test_conf_without_effect_is_never_raised() -> None:
    in_client_mode = MemoryPlan(MemoryPolicy(2), {}, useless=(OVERHEAD,))
    assert in_client_mode.next(DEFAULT, {DRIVER_OVERHEAD}) == NextMemory(DEFAULT)
    assert in_client_mode.next(DEFAULT, {DRIVER_HEAP}).raised == {HEAP: "2g"}


@pytest.mark.parametrize("confs", [{HEAP: "lots"}, {OVERHEAD_OF_EXECUTOR: "-1"}])
def test_configured_memory_that_is_no_size_is_refused(confs: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="is not a size of memory"):
        MemoryPlan(MemoryPolicy(2), confs).check()
