"""The cause of the last error in Spark's output."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.text.spark_output import SHOWN, cause_in, last_lines

PYTHON = """\
Traceback (most recent call last):
  File "/jobs/delays.py", line 12, in <module>
    main(job)
KeyError: 'day'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/jobs/delays.py", line 14, in <module>
    raise NoSuchDay("2026-11-20") from None
delays.NoSuchDay: 2026-11-20
26/11/23 02:51:07 INFO ShutdownHookManager: Shutdown hook called"""

JAVA = """\
Traceback (most recent call last):
  File "/jobs/delays.py", line 12, in <module>
    rows.count()
py4j.protocol.Py4JJavaError: An error occurred while calling o50.count.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
Caused by: java.io.IOException: cannot read s3a://lake/orders
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.net.UnknownHostException: lake.example
\t... 12 more"""

WORKER = """\
26/11/23 02:51:07 ERROR TaskSetManager: Task 0 in stage 1.0 failed 1 times; aborting job
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/lib/pyspark/worker.py", line 1, in main
26/11/23 02:51:07 INFO TaskSchedulerImpl: Cancelling stage 1
ZeroDivisionError: division by zero
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)"""

MAIN = """\
Exception in thread "main" java.nio.file.NoSuchFileException: /jobs/delays.jar
\tat java.base/sun.nio.fs.UnixException.translateToIOException(UnixException.java:92)"""


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (PYTHON, "delays.NoSuchDay: 2026-11-20"),
        (JAVA, "java.net.UnknownHostException: lake.example"),
        (WORKER, "ZeroDivisionError: division by zero"),
        (MAIN, "java.nio.file.NoSuchFileException: /jobs/delays.jar"),
        (f"{JAVA}\n{PYTHON}", "delays.NoSuchDay: 2026-11-20"),
        (f"{PYTHON}\n{JAVA}", "java.net.UnknownHostException: lake.example"),
        ("Traceback (most recent call last):\n  File 1\nKeyboardInterrupt", "KeyboardInterrupt"),
        ("26/11/23 02:51:07 INFO SparkContext: ValueError: only a word", None),
        ("", None),
    ],
    ids=["python", "java", "python worker", "java's main", "python after java", "java after python", "bare", "none", "nothing"],
)  # fmt: skip
def test_cause_is_that_of_the_last_error(printed: str, cause: str | None) -> None:
    assert cause_in(printed.splitlines()) == cause


def test_cause_is_found_above_the_lines_that_are_shown() -> None:
    lines = [*MAIN.splitlines(), *["26/11/23 02:51:07 INFO SparkContext: stopping"] * SHOWN]
    shown = last_lines(lines)
    assert len(shown) == 1 + SHOWN + 1
    assert shown[-1] == "  last error  java.nio.file.NoSuchFileException: /jobs/delays.jar"


def test_few_lines_without_an_error_are_shown_as_they_are() -> None:
    head, *lines = last_lines(["one"])
    assert head.startswith("The last 1 line of Spark's output:")
    assert lines == ["one"]


def test_nothing_is_shown_of_no_output() -> None:
    assert last_lines([]) == []
