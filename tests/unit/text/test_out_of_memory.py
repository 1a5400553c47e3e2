"""The texts that prove a death for want of memory, as Spark 4.2, YARN and Kubernetes write them, and the words for it. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.policies.memory import (
    DRIVER_HEAP,
    DRIVER_OVERHEAD,
    EXECUTOR_HEAP,
    EXECUTOR_OVERHEAD,
    RAISED,
)
from airflow_checkpoint_provider.text import out_of_memory

ABORTED = """An error occurred while calling o47.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: {}
\tat org.apache.spark.sql.catalyst.expressions.codegen.BufferHolder.grow(BufferHolder.java:85)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:3122)
Caused by: java.lang.Exception: OOMKilled, exit code 52, java.lang.OutOfMemoryError: Java heap space
"""
"""The error of a job, whose later lines must not count."""
LOST = "Lost task 0.3 in stage 0.0 (TID 3) (10.1.2.3 executor 4): ExecutorLostFailure (executor 4 exited {}) Reason: {}"
BY_TASK = "caused by one of the running tasks"
IN_TASK = "Lost task 0.0 in stage 1.0 (TID 1) ({} executor {}): {}"
HEAP_SPACE = "java.lang.OutOfMemoryError: Java heap space"
ON_KUBERNETES = """
The executor with id 4 exited with exit code {}.


The API gave the following brief reason: N/A
The API gave the following message: N/A
The API gave the following container statuses:


\t container name: spark-kubernetes-executor
\t container image: spark-py:4.2.0
\t container state: terminated
\t container started at: 2026-11-20T02:14:00Z
\t container finished at: 2026-11-20T02:51:07Z
\t exit code: {}
\t termination reason: {}
      """
BY_YARN = (
    "Container killed by YARN for exceeding {} memory limits. 1.5 GB of 1.5 GB {} memory used. Consider boosting"
    " spark.executor.memoryOverhead."
)


def lost(reason: str, how: str = BY_TASK) -> str:
    return ABORTED.format(LOST.format(how, reason))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (lost("Command exited with code 52"), EXECUTOR_HEAP),
        (lost("Container marked as failed: container_17_0001_01_000002 on host: n1. Exit status: 52. Diagnostics: "), EXECUTOR_HEAP),
        (lost(ON_KUBERNETES.format("52(JVM OOM)", 52, "Error")), EXECUTOR_HEAP),
        (lost(BY_YARN.format("physical", "physical")), EXECUTOR_OVERHEAD),
        (lost(BY_YARN.format("virtual", "virtual"), "unrelated to the running tasks"), EXECUTOR_OVERHEAD),
        (lost(ON_KUBERNETES.format("137(SIGKILL, possible container OOM)", 137, "OOMKilled")), EXECUTOR_OVERHEAD),
        (ABORTED.format(IN_TASK.format("10.1.2.3", 4, HEAP_SPACE)), EXECUTOR_HEAP),
        (ABORTED.format(IN_TASK.format("localhost", "driver", HEAP_SPACE)), DRIVER_HEAP),
        (
            ABORTED.format(
                IN_TASK.format(
                    "10.1.2.3", 4, "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536"
                )
            ),
            EXECUTOR_HEAP,
        ),
        (f"An error occurred while calling o52.collectAsList.\n: {HEAP_SPACE}\n\tat java.base/java.util.Arrays", DRIVER_HEAP),
        (
            "Not enough memory to build and broadcast the table to all worker nodes. As a workaround, you can either disable broadcast by",
            DRIVER_HEAP,
        ),
    ],
)  # fmt: skip
def test_error_of_a_job_that_memory_has_ended(text: str, cause: str) -> None:
    assert out_of_memory.cause_in_error(text) == cause


@pytest.mark.parametrize(
    "text",
    [
        "",
        lost("Command exited with code 137"),  # perhaps a kill -9
        lost(ON_KUBERNETES.format("137(SIGKILL, possible container OOM)", 137, "Error")),  # Spark only guesses
        lost("Container marked as failed: container_17_0001_01_000002 on host: n1. Exit status: 143. Diagnostics: "),
        lost("Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues."),
        lost("worker lost"),
        "java.lang.OutOfMemoryError: Metaspace",
        "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource limits reached",
        "java.lang.OutOfMemoryError: Requested array size exceeds VM limit",
        "ValueError: the customer wrote 'java.lang.OutOfMemoryError: Java heap space'",
        "MemoryError",
    ],
)
def test_error_that_proves_nothing_about_memory(text: str) -> None:
    assert out_of_memory.cause_in_error(text) == ""


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        (lost("worker lost"), True),
        ("org.apache.spark.shuffle.MetadataFetchFailedException; FetchFailed(null, shuffleId=0, mapIndex=-1)", True),
        ("AnalysisException: no such column", False),
    ],
)
def test_spark_is_asked_for_more_only_if_executors_were_lost(text: str, asks: bool) -> None:
    assert out_of_memory.tells_of_lost_executors(text) is asks


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f'Exception in thread "dispatcher-HeartbeatReceiver" {HEAP_SPACE}', DRIVER_HEAP),
        (HEAP_SPACE, DRIVER_HEAP),  # below "ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)"
        ("java.lang.OutOfMemoryError: GC overhead limit exceeded", DRIVER_HEAP),
        ("java.lang.OutOfMemoryError: Cannot reserve 1048576 bytes of direct buffer memory (allocated: 9, limit: 9)", DRIVER_HEAP),
        (f"26/11/27 03:36:34 WARN TaskSetManager: {IN_TASK.format('127.0.0.1', 0, HEAP_SPACE)}", ""),
        ("26/11/27 03:36:35 ERROR TaskSchedulerImpl: Lost executor 0 on 127.0.0.1: Command exited with code 52", ""),
        (f"Caused by: {HEAP_SPACE}", ""),  # perhaps of an executor
        (f"print: {HEAP_SPACE}", ""),
    ],
)  # fmt: skip
def test_last_lines_of_a_driver(line: str, cause: str) -> None:
    assert out_of_memory.cause_in_output(["one", line, "\tat java.base/java.lang.Thread.run(Thread.java:840)"]) == cause


AM = "Application application_17_0001 failed 1 times due to AM Container for appattempt_17_0001_000001 exited with  exitCode: {}"
BEYOND = (
    "Diagnostics: [2026-11-20 02:51:07.123]Container [pid=4711,containerID=container_17_0001_01_000001] is running 123904B beyond the"
    " 'PHYSICAL' memory limit. Current usage: 1.4 GB of 1.4 GB physical memory used; 3.6 GB of 2.9 GB virtual memory used. Killing container."
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (AM.format(-104), DRIVER_OVERHEAD),
        (AM.format(-103), DRIVER_OVERHEAD),
        (BEYOND, DRIVER_OVERHEAD),
        ("\t termination reason: OOMKilled", DRIVER_OVERHEAD),
        ("Spark application ns:etl-driver failed (phase=Failed exit_code=137 reason=OOMKilled)", DRIVER_OVERHEAD),
        (AM.format(52), DRIVER_HEAP),
        ("\t exit code: 52\n\t termination reason: Error", DRIVER_HEAP),
        ("Spark application ns:etl-driver failed (phase=Failed exit_code=52 reason=Error)", DRIVER_HEAP),
        (f'Exception in thread "main" {HEAP_SPACE}', DRIVER_HEAP),
        (AM.format(137), ""),
        (AM.format(-105), ""),
        (AM.format(-1040), ""),
        ("\t exit code: 137\n\t termination reason: Error", ""),
        ("", ""),
    ],
)
def test_word_of_a_cluster_manager_about_a_driver(text: str, cause: str) -> None:
    assert out_of_memory.cause_in_diagnostics(text) == cause


def test_exit_code_of_the_script_itself_is_no_evidence() -> None:
    assert out_of_memory.cause_in_diagnostics(AM.format(52), by_code=False) == ""
    assert out_of_memory.cause_in_diagnostics(AM.format(-104), by_code=False) == DRIVER_OVERHEAD


def test_each_cause_has_words_and_a_conf() -> None:
    said = {cause: out_of_memory.in_words({cause}) for cause in RAISED}
    assert said == {
        DRIVER_HEAP: "the driver ran out of memory (Java heap)",
        DRIVER_OVERHEAD: "the driver ran out of memory (its container's)",
        EXECUTOR_HEAP: "executors ran out of memory (Java heap)",
        EXECUTOR_OVERHEAD: "executors ran out of memory (their containers')",
    }
    assert out_of_memory.in_words({"of a later version", ""}) == ""
    assert out_of_memory.in_words([EXECUTOR_HEAP, DRIVER_HEAP]).count(", and ") == 1
