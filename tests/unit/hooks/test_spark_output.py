"""One log from a task's lines and those of Spark: what stands in a fold, what does not, and what is shown again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

import pytest

from airflow_checkpoint_provider.hooks.spark_output import END, FOLD, KEPT, SparkOutput
from tests.support.folds import unfolded


class Log:
    """A log with the lines of a task, and of a hook that logs what Spark prints."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.output = SparkOutput(self.lines.append)

    def spark(self, printed: Iterable[str]) -> list[str]:
        for line in self.output.fold(printed, self.lines.append):
            self.lines.append(line.strip())
        return self.lines


@pytest.fixture
def log() -> Log:
    return Log()


def test_lines_of_spark_stand_in_one_fold(log: Log) -> None:
    assert log.spark(["INFO one\n", "INFO two\n"]) == [FOLD, "INFO one", "INFO two", END]


def test_no_fold_is_made_for_no_line(log: Log) -> None:
    log.output.log(["RESTORE"])
    assert log.spark([]) == ["RESTORE"]


def test_marked_line_stands_between_two_folds_without_its_mark(log: Log) -> None:
    printed = [
        "INFO one\n",
        f"{log.output.mark}chk-1 completed  [CKP200]\n",
        f"{log.output.mark}  indented\n",
        "INFO two\n",
    ]
    assert log.spark(printed) == [
        FOLD,
        "INFO one",
        END,
        "chk-1 completed  [CKP200]",
        "  indented",
        FOLD,
        "INFO two",
        END,
    ]


def test_mark_behind_other_text_ends_that_text(log: Log) -> None:
    """As a progress bar, which prints no line break."""
    assert log.spark([f"[Stage 0:>  (0 + 1) / 1]{log.output.mark}chk-1 completed\n"]) == [
        FOLD, "[Stage 0:>  (0 + 1) / 1]", END, "chk-1 completed",
    ]  # fmt: skip


def test_line_of_the_task_ends_the_fold(log: Log) -> None:
    lines = log.output.fold(iter(["INFO one\n", "INFO two\n"]), log.lines.append)
    log.lines.append(next(lines).strip())
    thread = threading.Thread(target=log.output.log, args=(["from another thread"],))
    thread.start()
    log.lines.extend(line.strip() for line in lines)
    thread.join(60)
    assert unfolded(log.lines) == ["from another thread"]
    assert log.lines.count(FOLD) == log.lines.count(END)


def test_lines_of_many_threads_stand_outside_and_those_of_spark_inside(log: Log) -> None:
    ours = [[f"thread {number} line {index}" for index in range(50)] for number in range(4)]

    def write(lines: list[str]) -> None:
        for line in lines:
            log.output.log([line])

    threads = [threading.Thread(target=write, args=(lines,)) for lines in ours]
    for thread in threads:
        thread.start()
    log.spark(f"INFO {number}\n" for number in range(2000))
    for thread in threads:
        thread.join(60)
    assert sorted(unfolded(log.lines)) == sorted(itertools.chain(*ours))
    assert [line for line in log.lines if line.startswith("INFO")] == [f"INFO {number}" for number in range(2000)]


def test_fold_ends_if_the_reader_fails(log: Log) -> None:
    lines = log.output.fold(["INFO one\n", "INFO two\n"], log.lines.append)
    log.lines.append(next(lines).strip())
    lines.close()
    thread = threading.Thread(target=log.output.log, args=(["afterwards"],))  # the lock is free for others, too
    thread.start()
    thread.join(60)
    assert log.lines == [FOLD, "INFO one", END, "afterwards"]


def test_last_lines_are_shown_outside_with_the_cause_last(log: Log) -> None:
    log.spark(
        [
            *(f"INFO {number}\n" for number in range(100)),
            f"{log.output.mark}ours is shown once\n",
            "Traceback (most recent call last):\n",
            '  File "job.py", line 3, in main\n',
            "ValueError: no such day\n",
            "26/11/23 02:51:07 INFO ShutdownHookManager: Shutdown hook called\n",
        ]
    )
    log.output.log_last_lines()
    head, *again = unfolded(log.lines)[1:]
    assert head.startswith("The last 60 lines of Spark's output:")
    assert again[0] == "INFO 44"
    assert again[-4:] == [
        '  File "job.py", line 3, in main',
        "ValueError: no such day",
        "26/11/23 02:51:07 INFO ShutdownHookManager: Shutdown hook called",
        "  last error  ValueError: no such day",
    ]
    assert len(again) == 60 + 1


def test_secrets_in_the_last_lines_are_masked(log: Log) -> None:
    log.spark(["INFO: db.password=tell-nobody and fs.s3a.secret.key tell-nobody-either\n"])
    log.output.log_last_lines()
    assert "tell-nobody" not in " ".join(unfolded(log.lines))


def test_kept_lines_are_bounded(log: Log) -> None:
    log.spark(["ValueError: is no cause without a traceback\n", *["INFO\n"] * (KEPT + 1)])
    assert len(log.output._last) == KEPT


def test_mark_that_a_driver_prints_begins_and_ends_no_fold(log: Log) -> None:
    lines = log.spark(["::group::mine\n", f"::endgroup::{log.output.mark}RESTORE\n", "INFO\n"])
    assert lines == [FOLD, ": :group: :mine", ": :endgroup: :", END, "RESTORE", FOLD, "INFO", END]
    assert unfolded(lines) == ["RESTORE"]


@pytest.mark.parametrize("mark", ["::checkpoint::", "::checkpoint-::", f"::checkpoint-{'0' * 32}::"])
def test_row_in_an_error_of_spark_is_no_line_of_the_task(log: Log, mark: str) -> None:
    lines = log.spark([f"Py4JJavaError: cannot cast {mark}REFUSED: somebody paid  [CKP605] to INT\n"])
    assert unfolded(lines) == []


def test_each_launch_has_a_mark_of_its_own() -> None:
    assert Log().output.mark != Log().output.mark
