"""Stories of Delta sinks in one driver: each step of a commit waits while others go on. Runs in the Spark driver.

``delta_sinks.py OUT`` writes tables below OUT, and prints the outcome of each story that ``STORIES`` names.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.functions import udf

from airflow_checkpoint_provider.errors import (
    CommitFailed,
    CommitStateUnknown,
    Damaged,
    NotSupportedYet,
    OverwrittenSince,
    RowsStand,
    SinkMoved,
)
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.spark import DeltaSink, SinkContext
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaTable
from airflow_checkpoint_provider.spark.sinks.delta import OpenDeltaSink
from airflow_checkpoint_provider.spark.sinks.delta_chain import DeltaChain
from airflow_checkpoint_provider.spark.sinks.staged_rows import StagedRows
from tests.support.sink_stories import (
    MONDAY,
    RETRY,
    TUESDAY,
    Steps,
    name,
    overwritten_though_the_clean_up_fails,
    prepared,
    refused,
    removed,
    spark,
    story,
    tell_stories,
)

STEPS = [(DeltaTable, "newest_batch"), (DeltaTable, "commits"), (OpenDeltaSink, "_save"), (StagedRows, "delete")]
MOST_STEPS = 30
PATIENCE = 120.0


def opened(path: str, context: SinkContext = MONDAY, **options: Any) -> OpenDeltaSink:
    found = DeltaSink(path, **options).open(context)
    assert isinstance(found, OpenDeltaSink)
    return found


def ids(path: str) -> list[int]:
    if not Path(path, "_delta_log").exists():
        return []
    return sorted(row.id for row in spark.read.format("delta").load(path).collect())


def staged(path: str) -> list[str]:
    return [str(found) for found in Path(path).glob("_checkpoint-staging/*/*")]


def at_each_step(
    path: str, mode: str, meanwhile: Callable[[str, Transaction], None], *expected: list[int], **options: Any
) -> None:
    rounds = 0
    for number in range(1, MOST_STEPS):
        table = f"{path}-{number}"
        transaction = prepared(opened(table, mode=mode, **options), 1, 1, 2)
        asleep = opened(table, mode=mode, **options)
        steps = Steps(STEPS, number, lambda table=table, transaction=transaction: meanwhile(table, transaction))  # type: ignore[misc]
        with steps.asleep(), suppress(OverwrittenSince):
            asleep.commit(transaction)
        if not steps.slept:
            break
        rounds += 1
        assert ids(table) in expected, (number, ids(table))
        assert staged(table) == [], number
    assert rounds >= 4, rounds


# -- stories -----------------------------------------------------------------------------------------------------------


@story
def once(path: str) -> None:
    sink = opened(path, partition_by=["half"])
    transaction = prepared(sink, 1, 1, 2)
    assert ids(path) == []
    assert [left.name for left in sink.leftovers()] == [name(1)]
    assert sink.standing() == ()
    for again in (sink, sink, opened(path, RETRY, partition_by=["half"])):
        assert again.commit(transaction)
    assert ids(path) == [1, 2]
    assert staged(path) == []
    assert sink.position() == "version 0"
    assert opened(path, RETRY).standing() == (name(1),)
    assert opened(path, TUESDAY).standing() == ()
    assert not sink.replaces
    assert sorted(found.name for found in Path(path).glob("half=*")) == ["half=0", "half=1"]
    spark.sql(f"VACUUM delta.`{path}`")
    assert sink.abort([name(1)]) == (name(1),)
    assert ids(path) == [1, 2]


@story
def aborted_for_good(path: str) -> None:
    first, second = opened(path), opened(path, RETRY)
    transaction = prepared(first, 1, 1, 2)
    assert second.abort([name(1)]) == ()
    assert staged(path) == []
    assert first.commit(transaction) is False
    assert second.abort([name(1)]) == ()
    assert ids(path) == []


@story
def abort_leaves_the_earlier_one(path: str) -> None:
    """A gated sink: the second write is given up, the first one is still to come."""
    sink = opened(path)
    first, _ = prepared(sink, 1, 1), prepared(sink, 2, 2)
    sink.abort([name(2)])
    assert sink.commit(first)
    assert ids(path) == [1]


@story
def abort_of_an_overwrite_leaves_the_earlier_one(path: str) -> None:
    sink = opened(path, mode="overwrite")
    first, _ = prepared(sink, 1, 1), prepared(sink, 2, 2)
    sink.abort([name(2)])
    assert sink.commit(first)
    tuesday = opened(path, TUESDAY, mode="overwrite")
    prepared(tuesday, 3, 3)
    tuesday.abort([name(3)])
    again = prepared(sink, 4, 4)
    assert sink.commit(again)
    assert ids(path) == [4]


@story
def table_that_only_aborts_have_made_takes_other_columns(path: str) -> None:
    prepared(opened(path), 1, 1)
    sink = opened(path, RETRY, run_column="run", partition_by=["day"])
    sink.abort([name(1)])
    assert ids(path) == []
    held = sink.prepare(spark.range(2).selectExpr("id", "'monday' AS day"), name(2), 2)
    origin = Origin(plan="p", inputs="i")
    transaction = Transaction(name=name(2), version=2, run="r", write=0, origin=origin, prepared=held.content)
    assert sink.commit(transaction)
    assert ids(path) == [0, 1]
    assert spark.read.format("delta").load(path).columns == ["id", "day", "run"]


@story
def leftovers_of_another_run_are_aborted(path: str) -> None:
    monday, tuesday = opened(path), opened(path, TUESDAY)
    transaction = prepared(monday, 1, 1)
    assert [left.history for left in tuesday.leftovers()] == [MONDAY.history]
    assert tuesday.abort([name(1)]) == ()
    assert monday.commit(transaction) is False
    assert ids(path) == []


@story
def overwrite_since_is_told_though_the_clean_up_fails(path: str) -> None:
    monday, tuesday = opened(path, mode="overwrite"), opened(path, TUESDAY, mode="overwrite")
    overwritten_though_the_clean_up_fails(monday, tuesday)
    assert ids(path) == [2]


@story
def later_run_has_the_last_word(path: str) -> None:
    monday, tuesday = opened(path, mode="overwrite"), opened(path, TUESDAY, mode="overwrite")
    late = prepared(monday, 1, 1)
    assert tuesday.commit(prepared(tuesday, 2, 2))
    refused(OverwrittenSince, "a run that began later has overwritten it", lambda: monday.commit(late))
    assert monday.commit(late) is False
    assert ids(path) == [2]
    assert staged(path) == []
    cleared = opened(path, replace(MONDAY, generation=1), mode="overwrite")
    assert cleared.commit(prepared(cleared, 3, 3))
    assert ids(path) == [3]


@story
def rows_are_written_and_filed_as_they_were_prepared(path: str) -> None:
    """Whoever commits them: a fork that was given them, a cleared run, or a later run of a changed script."""
    transaction = prepared(opened(path, partition_by=["half"]), 1, 1)
    fork = replace(TUESDAY, uid="copy", generation=3)
    assert opened(path, fork, mode="overwrite").commit(transaction)
    assert [found.name for found in Path(path).glob("half=*")] == ["half=1"]
    other = prepared(opened(path, partition_by=["half"]), 2, 2)
    assert opened(path, fork, partition_by=["id"]).commit(other)
    assert ids(path) == [1, 2]
    entries = DeltaChain(DeltaTable(spark, path), transaction.prepared["chain"]).entries()
    assert [entry.by for entry in entries] == [MONDAY.by, MONDAY.by]
    assert [made.name for made in opened(path).later(0)] == [name(1), name(2)]
    third = prepared(opened(path, partition_by=["half"]), 3, 3)
    assert opened(path, fork, partition_by=["id"]).abort([name(3)]) == ()
    assert opened(path).commit(third) is False


@story
def rows_of_a_run_are_replaced(path: str) -> None:
    sink = opened(path, run_column="made_by")
    assert sink.replaces
    assert sink.commit(prepared(sink, 1, 1, 2))
    other = opened(path, replace(MONDAY, run="monday"), run_column="made_by")
    assert other.commit(prepared(other, 2, 3, run="monday"))
    assert sink.standing() == (name(1),)
    assert other.standing() == (name(2),)
    again = prepared(sink, 3, 4, replaces=(name(1),))
    for _ in range(2):
        assert sink.commit(again)
    assert ids(path) == [3, 4]
    assert sink.standing() == (name(3),)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 4")
    assert sink.standing() == ()


@story
def rows_that_the_script_does_not_write_any_more_are_taken_out(path: str) -> None:
    sink = opened(path, run_column="made_by")
    for number in (1, 2):
        assert sink.commit(prepared(sink, number, number))
    other = opened(path, replace(MONDAY, run="monday"), run_column="made_by")
    assert other.commit(prepared(other, 3, 3, run="monday"))
    removal = removed(sink, 4, name(1), name(2))
    for _ in range(2):
        assert sink.commit(removal)
    assert ids(path) == [3]
    assert sink.standing() == ()


@story
def rows_of_an_overwrite_are_not_taken_out_alone(path: str) -> None:
    sink = opened(path, mode="overwrite")
    assert sink.commit(prepared(sink, 1, 1))
    refused(NotSupportedYet, "write(df.limit(0))", lambda: removed(sink, 2, name(1)))


@story
def rows_under_an_earlier_name_are_the_sinks_own(path: str) -> None:
    first = opened(path)
    assert first.commit(prepared(first, 1, 1))
    other = replace(RETRY, uid="rapport")
    for found in (opened(path, other).standing(), opened(path, other).later(0)):
        assert not found
    renamed = opened(path, replace(other, also=("report",)))
    assert renamed.commit(prepared(renamed, 2, 2))
    both = opened(path, replace(RETRY, also=("rapport",)))
    for sink in (renamed, both):
        assert sink.standing() == (name(1), name(2))
        assert [found.version for found in sink.later(0)] == [1, 2]


@story
def rows_that_another_run_column_marks_are_not_replaced(path: str) -> None:
    first = opened(path, run_column="run")
    assert first.commit(prepared(first, 1, 1))
    now = opened(path, RETRY, run_column="made_by")
    refused(RowsStand, "that run_column does not mark", now.standing)
    refused(NotSupportedYet, "run_column does not mark them", lambda: now.take_out([name(1)]))
    assert [found.version for found in now.later(0)] == [1]
    assert opened(path, RETRY, run_column="run").standing() == (name(1),)


@story
def rows_without_the_column_are_not_replaced(path: str) -> None:
    sink = opened(path)
    assert sink.commit(prepared(sink, 1, 1))
    tagged = opened(path, RETRY, run_column="run")
    try:
        tagged.standing()
    except RowsStand as error:
        text = str(error)
    assert "that run_column does not mark" in text
    assert opened(path, TUESDAY, run_column="run").standing() == ()


@story
def rows_of_later_runs_are_taken_out(path: str) -> None:
    made_by = {}
    for number, run in ((1, "a"), (2, "b \\ it's"), (3, "c")):
        sink = opened(path, replace(MONDAY, run=run), run_column="run")
        made_by[number] = prepared(sink, number, number, run=run)
        assert sink.commit(made_by[number])
    later = sink.later(1)
    assert sorted((made.name, made.version, made.run) for made in later) == [
        (name(2), 2, "b \\ it's"),
        (name(3), 3, "c"),
    ]
    for _ in range(2):
        sink.take_out([made.name for made in later])
        assert sink.later(1) == []
    assert sink.taken_out([*made_by.values()]) == {name(2), name(3)}
    assert opened(path).taken_out([*made_by.values()]) == (), "without the column nothing was taken out"
    assert ids(path) == [1]


@story
def rows_without_a_run_are_taken_out_by_a_restore(path: str) -> None:
    sink = opened(path)
    for number in (1, 2, 3):
        assert sink.commit(prepared(sink, number, number))
    assert [made.name for made in sink.later(1)] == [name(2), name(3)]
    try:
        sink.take_out([name(2)])
    except NotSupportedYet as error:
        text = str(error)
    assert "RESTORE TABLE" in text
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    assert sink.later(1) == []
    assert sink.commit(prepared(sink, 4, 4))
    assert ids(path) == [1, 4]
    assert [made.name for made in sink.later(1)] == [name(4)]


@story
def other_writers_do_not_matter(path: str) -> None:
    sink = opened(path)
    for number in (1, 2):
        transaction = prepared(sink, number, number)
        spark.range(10 * number, 10 * number + 1).selectExpr("id", "id AS half").write.format("delta").mode(
            "append"
        ).option("userMetadata", "theirs").save(path)
        assert sink.commit(transaction)
    assert ids(path) == [1, 2, 10, 20]
    assert opened(path, RETRY).standing() == (name(1), name(2))


@story
def lost_log_is_said(path: str) -> None:
    sink = opened(path)
    for number in (1, 2):
        assert sink.commit(prepared(sink, number, number))
    transaction = prepared(sink, 3, 3)
    for _ in range(10):  # the table makes a checkpoint of its log, so old entries may go
        spark.sql(f"INSERT INTO delta.`{path}` VALUES (9, 9)")
    for entry in range(5):
        Path(path, "_delta_log", f"{entry:020d}.json").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    refused(CommitStateUnknown, "does not have its commits", lambda: opened(path, RETRY).commit(transaction))
    cleared = replace(MONDAY, generation=1, run_began=1.0)
    refused(RowsStand, "nobody can tell which rows", opened(path, cleared).standing)
    assert opened(path, replace(cleared, run_began=time.time() + 3600)).standing() == ()
    refused(SinkMoved, "nobody can tell which rows", lambda: opened(path, RETRY).later(1))


@story
def refused_rows_are_said(path: str) -> None:
    sink = opened(path)
    assert sink.commit(prepared(sink, 1, 1))
    wrong = sink.prepare(spark.range(1).selectExpr("id", "'x' AS other"), name(2), 2)
    transaction = Transaction(
        name=name(2), version=2, run="r", write=1, origin=Origin(plan="p", inputs="i"), prepared=wrong.content
    )
    refused(CommitFailed, "does not take the rows", lambda: sink.commit(transaction))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (other STRING)")
    assert sink.commit(transaction)
    assert ids(path) == [0, 1]


@story
def lost_staged_rows_are_said(path: str) -> None:
    sink = opened(path)
    transaction = prepared(sink, 1, 1)
    for file in Path(path).glob("_checkpoint-staging/*/rows/*"):
        file.unlink()
    refused(Damaged, "is missing", lambda: sink.commit(transaction))
    assert ids(path) == []


def retry_commits(path: str, transaction: Transaction) -> None:
    mode = "overwrite" if transaction.prepared["began"] else "append"
    with suppress(OverwrittenSince):
        opened(path, RETRY, mode=mode).commit(transaction)


def tuesday_overwrites(path: str, _: Transaction) -> None:
    sink = opened(path, TUESDAY, mode="overwrite")
    sink.commit(prepared(sink, 9, 9))


def retry_commits_tuesday_overwrites(path: str, transaction: Transaction) -> None:
    retry_commits(path, transaction)
    tuesday_overwrites(path, transaction)


def run_starts_over(path: str, _: Transaction) -> None:
    sink = opened(path, replace(RETRY, generation=1), run_column="run")
    committed = sink.abort([name(1)])
    sink.commit(prepared(sink, 8, 8, replaces=committed))


def retry_aborts(path: str, _: Transaction) -> None:
    opened(path, RETRY).abort([name(1)])


def others_append(path: str, _: Transaction) -> None:
    sink = opened(path, TUESDAY)
    sink.commit(prepared(sink, 9, 9))


@story
def slept_while_a_retry_committed(path: str) -> None:
    at_each_step(path, "append", retry_commits, [1, 2])


@story
def slept_while_a_retry_aborted(path: str) -> None:
    at_each_step(path, "append", retry_aborts, [], [1, 2])


@story
def slept_while_others_appended(path: str) -> None:
    at_each_step(path, "append", others_append, [1, 2, 9])


@story
def slept_while_the_run_started_over(path: str) -> None:
    at_each_step(path, "append", run_starts_over, [8], run_column="run")


@story
def slept_while_tuesday_overwrote(path: str) -> None:
    at_each_step(path, "overwrite", tuesday_overwrites, [9])


@story
def slept_while_a_retry_committed_and_tuesday_overwrote(path: str) -> None:
    at_each_step(path, "overwrite", retry_commits_tuesday_overwrites, [9])


def inside(path: str, mode: str, meanwhile: Callable[[str, Transaction], None]) -> None:
    """The first process sleeps inside of Delta's own transaction: its rows are being written."""
    transaction = prepared(opened(path, mode=mode), 1, 1, 2)
    begun, go = Path(f"{path}.begun"), Path(f"{path}.go")

    def wait(value):  # type: ignore[no-untyped-def]  # Spark would look for a type of UDF in hints
        begun.touch()
        until = time.monotonic() + PATIENCE
        while not go.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return value

    asleep, waiting = opened(path, mode=mode), udf(wait, "long", useArrow=False)
    read = asleep._staged.read
    asleep._staged.read = lambda *args: read(*args).coalesce(1).withColumn("id", waiting("id"))  # type: ignore[method-assign]
    errors: list[Exception] = []

    def commit() -> None:
        try:
            asleep.commit(transaction)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not begun.exists():
        assert not errors, errors
        assert time.monotonic() < until
        time.sleep(0.05)
    meanwhile(path, transaction)
    go.touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert all(isinstance(error, OverwrittenSince) for error in errors), errors
    assert staged(path) == []


@story
def slept_inside_of_a_commit_while_a_retry_committed(path: str) -> None:
    inside(path, "append", retry_commits)
    assert ids(path) == [1, 2]


@story
def slept_inside_of_a_commit_while_a_retry_aborted(path: str) -> None:
    inside(path, "append", retry_aborts)
    assert ids(path) == []


@story
def slept_inside_of_an_overwrite_while_tuesday_overwrote(path: str) -> None:
    inside(path, "overwrite", tuesday_overwrites)
    assert ids(path) == [9]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tell_stories(lambda title: str(out / title))
