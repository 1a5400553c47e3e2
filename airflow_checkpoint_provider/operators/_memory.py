"""Memory after a death for want of memory: what the next launch gets, and of what a driver died. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_checkpoint_provider.coordinator.oom_kills import OomKills
from airflow_checkpoint_provider.policies.memory import (
    DRIVER_HEAP,
    DRIVER_OVERHEAD,
    HEAPS,
    OVERHEADS,
    SHARE,
    SHARE_ON_KUBERNETES,
    MemoryPlan,
    MemoryPolicy,
    NextMemory,
    in_words,
    literal_memory,
    memory_policy,
)
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import out_of_memory

_PARAMETERS = {HEAPS["driver"]: "driver_memory", HEAPS["executor"]: "executor_memory"}
_VARIABLES = {HEAPS["driver"]: "SPARK_DRIVER_MEMORY", HEAPS["executor"]: "SPARK_EXECUTOR_MEMORY"}
OOM_EXIT, KILLED = 52, 137  # of Spark's JVM after an OutOfMemoryError; after SIGKILL, for whatever reason


# -- the next launch ---------------------------------------------------------------------------------------------------


def check(after_oom: object, limit: object, arguments: Mapping[str, Any]) -> None:
    """Raise ``InvalidConfig`` for parameters that cannot be, and for a limit below what ``arguments`` name, which are those of the hook."""
    policy = memory_policy(after_oom, limit)
    if policy is not None:
        conf = arguments["conf"] if isinstance(arguments["conf"], Mapping) else {}
        policy.check(literal_memory({**conf, **_given(arguments)}))


def memory_plan(
    policy: MemoryPolicy, arguments: Mapping[str, Any], confs: Mapping[str, str], *, master: str, in_cluster: bool
) -> MemoryPlan:
    """Return the plan of a task, which is not checked against what is configured on this worker. ``confs`` hold where ``arguments``, those of
    the hook, name nothing."""
    environment = {conf: os.environ[name] for conf, name in _VARIABLES.items() if os.environ.get(name)}
    return MemoryPlan(
        policy,
        {**environment, **confs, **_given(arguments)},
        SHARE_ON_KUBERNETES if in_cluster and "k8s" in master else SHARE,
        () if in_cluster else (OVERHEADS["driver"],),
    )


def _given(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the memory that the operator's parameters name: they win over confs, as options of ``spark-submit``."""
    return {conf: str(arguments[name]) for conf, name in _PARAMETERS.items() if arguments.get(name)}


def next_memory(plan: MemoryPlan | None, state: State, run: str) -> NextMemory:
    """Return the memory of the next launch of a run."""
    if plan is None:
        return NextMemory()
    known = state.run(run)
    before = state.launch(known.launch) if known else None
    return plan.next(before.spec.memory, state.causes_of(before)) if before else plan.next({}, ())


def not_raised(plan: MemoryPlan | None, state: State, run: str) -> list[str]:
    """Say why the next launch of a run has no more memory than the launch before it, though that died of it."""
    known = state.run(run)
    before = state.launch(known.launch) if known else None
    if plan is None or before is None:
        return []
    causes, memory = state.causes_of(before), next_memory(plan, state, run)
    useless = DRIVER_OVERHEAD in causes and OVERHEADS["driver"] in plan.useless
    limit = in_words(plan.policy.limit or 0)
    lines = out_of_memory.held(memory.used, memory.held, limit)
    return [*lines, *([out_of_memory.no_conf_raises({DRIVER_OVERHEAD})] if useless else [])]


def raise_memory(arguments: dict[str, Any], plan: MemoryPlan | None, memory: Mapping[str, str]) -> None:
    """Put the memory of a planned launch into the arguments of its hook, where it wins over every other place."""
    raised = plan.next(memory, ()).raised if plan else {}
    for conf, size in raised.items():
        if (
            conf in _PARAMETERS
        ):  # an option of spark-submit; the JVM of a driver in client mode takes the later one of option and conf
            arguments[_PARAMETERS[conf]] = size
            arguments["conf"] = {name: value for name, value in arguments["conf"].items() if name != conf}
        else:
            arguments["conf"] = {**arguments["conf"], conf: size}


# -- the end of a driver -----------------------------------------------------------------------------------------------


def cause_in_client(
    attempt: AttemptRecord | None, exit_code: int | None, output: Sequence[str], kills: OomKills
) -> str:
    """Return the memory that a driver in client mode ran out of, as its task sees it; empty if it was not memory.

    ``output`` are its last lines, ``exit_code`` is that of its JVM.
    """
    if exit_code == OOM_EXIT and attempt is not None and not _of_script(attempt):
        return DRIVER_HEAP
    if cause := out_of_memory.cause_in_output(output):
        return cause
    return DRIVER_OVERHEAD if exit_code == KILLED and kills.happened() else ""


def cause_in_cluster(attempt: AttemptRecord | None, said: str) -> str:
    """Return the memory that a driver in a cluster ran out of, by what ``spark-submit`` and the cluster manager said; empty if it was not memory."""
    return out_of_memory.cause_in_diagnostics(said, by_code=attempt is None or not _of_script(attempt))


def _of_script(attempt: AttemptRecord) -> bool:
    """Return whether the exit code that Spark uses for this was the script's own: a driver whose JVM dies of it cannot announce it."""
    return attempt.exit_code == OOM_EXIT
