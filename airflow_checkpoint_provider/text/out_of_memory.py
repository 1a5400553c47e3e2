"""A death for want of memory: the texts that prove it, and the words for it. Runs anywhere; no I/O, no clock.

Only what Spark, the JVM, YARN and Kubernetes themselves call that counts. Exit code 137 alone proves nothing: anybody may kill a process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from airflow_checkpoint_provider.policies.memory import (
    DRIVER_HEAP,
    DRIVER_OVERHEAD,
    EXECUTOR_HEAP,
    EXECUTOR_OVERHEAD,
    RAISED,
    mebibytes,
)
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.units import coded, labelled

CODES = {
    "CKP508": "A driver or executor ran out of memory, and memory_limit= allows no more. The retry has the same memory.",
    "CKP509": "A driver used up the memory of its container. No conf of Spark gives it more, so the retry has the same memory.",
}

# What more heap mends: not a metaspace, threads of the system, or an array that is too long for any JVM.
_HEAP = r"(?:Java heap space|GC overhead limit exceeded|Direct buffer memory|Cannot reserve \d+ bytes of direct buffer memory)"
_ERROR = rf"(?:java\.lang\.OutOfMemoryError: {_HEAP}|org\.apache\.spark\.memory\.SparkOutOfMemoryError\b)"
_IN_DRIVER = re.compile(
    rf"^\s*(?:: |Exception in thread \".*?\" )?{_ERROR}|Not enough memory to build and broadcast the table",
    re.MULTILINE,
)
_IN_TASK = re.compile(rf"\(TID \d+\) \(\S+ executor (\w+)\): {_ERROR}")
_LOST = re.compile(r"ExecutorLostFailure \(executor .*?\) Reason: (.*?)(?=\n\n?Driver stacktrace:|\Z)", re.DOTALL)
_PYTHON_CRASHED = "Python worker exited unexpectedly"

_EXECUTOR_HEAP = re.compile(r"exited with (?:exit )?code 52\b|Exit status: 52\b")
_EXECUTOR_CONTAINER = re.compile(
    r"Container killed by YARN for exceeding (?:physical|virtual) memory limits|Exit status: -10[34]\b"
    r"|termination reason: OOMKilled"
)
_DRIVER_CONTAINER = re.compile(
    r"exitCode: -10[34]\b|beyond (?:the )?'?(?:physical|virtual)'? memory limit|\breason\W{1,5}OOMKilled",
    re.IGNORECASE,
)
_DRIVER_CODE = re.compile(r"(?:\bexitCode: |\bexit code: |\bexit_code=)52\b")

_WORDS = {
    DRIVER_HEAP: "the driver ran out of memory (Java heap)",
    DRIVER_OVERHEAD: "the driver ran out of memory (its container's)",
    EXECUTOR_HEAP: "executors ran out of memory (Java heap)",
    EXECUTOR_OVERHEAD: "executors ran out of memory (their containers')",
}


# -- evidence ----------------------------------------------------------------------------------------------------------


def cause_in_error(text: str) -> str:
    """Return the memory that a job ran out of, by the text of the error in its driver; empty if it was not memory."""
    if lost := [*_LOST.finditer(text)]:
        return cause_in_loss(lost[-1][1])
    if task := _IN_TASK.search(text):
        return DRIVER_HEAP if task[1] == "driver" else EXECUTOR_HEAP
    return DRIVER_HEAP if _IN_DRIVER.search(text) else ""


def cause_in_loss(reason: str) -> str:
    """Return the memory that an executor ran out of, by Spark's reason for its loss; empty if it was not memory."""
    if _EXECUTOR_CONTAINER.search(reason):
        return EXECUTOR_OVERHEAD
    return EXECUTOR_HEAP if _EXECUTOR_HEAP.search(reason) else ""


def tells_of_lost_executors(text: str) -> bool:
    """Return whether the error in a driver comes from executors that were lost: then Spark knows more reasons than the text has."""
    return "ExecutorLostFailure" in text or "FetchFailed" in text


def python_crashed(text: str) -> bool:
    """Return whether a Python worker has died: of memory, if the kernel has killed a process for that."""
    return _PYTHON_CRASHED in text


def cause_in_output(lines: Iterable[str]) -> str:
    """Return the memory that a driver ran out of, by the last lines of its output; empty if it was not memory."""
    return DRIVER_HEAP if any(_IN_DRIVER.search(line) for line in lines) else ""


def cause_in_diagnostics(text: str, *, by_code: bool = True) -> str:
    """Return the memory that a driver in a cluster ran out of, by what ``spark-submit``, YARN or Kubernetes say about it; else empty.

    ``by_code``: exit code 52 is that of Spark's JVM, not of the script.
    """
    if _DRIVER_CONTAINER.search(text):
        return DRIVER_OVERHEAD
    return DRIVER_HEAP if (by_code and _DRIVER_CODE.search(text)) or _IN_DRIVER.search(text) else ""


# -- words -------------------------------------------------------------------------------------------------------------


def in_words(causes: Collection[str]) -> str:
    """Return how people say these causes; empty for none that this version knows."""
    return ", and ".join(words for cause, words in _WORDS.items() if cause in causes)


def memory_lines(state: State, before: Launch | None, launch: Launch) -> list[str]:
    """Return the line of the restore story that says which memory was used up, and what this launch has; none if it was not memory."""
    causes = state.causes_of(before) if before else frozenset[str]()
    if before is None or not in_words(causes):
        return []
    confs = [RAISED[cause] for cause in _WORDS if cause in causes]
    had, has = before.spec.memory, launch.spec.memory
    parts = [f"{conf}={has[conf]}{_compared(had.get(conf), has[conf], before)}" for conf in confs if conf in has]
    then = f"this launch has {' and '.join(parts)}" if parts else 'memory_after_oom="1.5 x" would give a retry more'
    return [labelled("memory", f"{in_words(causes)}: {then}")]


def _compared(had: str | None, has: str, before: Launch) -> str:
    if had is None:
        return ""
    times = mebibytes(has, "memory") / mebibytes(had, "memory")
    return f", as launch {before.number} had" if times == 1 else f", {times:.3g} times that of launch {before.number}"


def held(memory: Mapping[str, str], confs: Collection[str], limit: str) -> list[str]:
    """Say that ``confs`` would be raised but for the limit."""
    sizes = ", ".join(f"{conf}={memory[conf]}" for conf in confs)
    text = f"NOT RAISED: {sizes}, because memory_limit={limit}. If the retry dies too, give the task a higher limit, or less to do at once"
    return [coded(text, "CKP508")] if confs else []


def no_conf_raises(causes: Collection[str]) -> str:
    """Say that no conf gives the driver more of the memory that it used up."""
    text = f"NOT RAISED: {in_words(causes)}. In client mode that is the memory of the worker, which no conf of Spark raises"
    return coded(f'{text}. Give the worker more, or use deploy_mode="cluster"', "CKP509")
