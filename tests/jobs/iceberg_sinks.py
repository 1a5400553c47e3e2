"""Stories of Iceberg sinks in one driver: each step of a commit waits while others go on. Runs in the Spark driver.

``iceberg_sinks.py OUT`` writes tables of the catalog ``ice``, and prints the outcome of each story that ``STORIES`` names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.errors import (
    CommitStateUnknown,
    Damaged,
    InvalidConfig,
    NotSupportedYet,
    OverwrittenSince,
    RowsStand,
    SinkMoved,
    WrongUse,
)
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.spark import IcebergSink, SinkContext
from airflow_checkpoint_provider.spark.sinks.iceberg import OpenIcebergSink, read_prepared
from airflow_checkpoint_provider.spark.sinks.iceberg_branches import BranchedTable
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

STEPS = [
    (BranchedTable, "read"),
    (BranchedTable, "make_branch"),
    (OpenIcebergSink, "_write"),
    (BranchedTable, "_load"),
    (OpenIcebergSink, "_remove"),
]
MOST_STEPS = 40
RACERS = 4
EXPIRE = (
    "CALL ice.system.expire_snapshots(table => '{}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
)
ORPHANS = "CALL ice.system.remove_orphan_files(table => '{}', older_than => TIMESTAMP '2000-01-01 00:00:00')"
RUN = "made_by"


def made(table: str, *, run_column: bool = False, rows: int = 0) -> str:
    """Make a table. It has no snapshot if it has no rows."""
    column = f", {RUN} STRING" if run_column else ""
    spark.sql(f"CREATE TABLE {table} (id BIGINT, half BIGINT{column}) USING iceberg PARTITIONED BY (half)")
    if rows:
        append(table, *range(1000, 1000 + rows))
    return table


def append(table: str, *ids: int) -> None:
    """Let somebody else append rows."""
    columns = spark.table(table).columns
    rows = [(each, 0, None)[: len(columns)] for each in ids]
    spark.createDataFrame(rows, spark.table(table).schema).writeTo(table).append()


def opened(table: str, context: SinkContext = MONDAY, **options: Any) -> OpenIcebergSink:
    found = IcebergSink(table, **options).open(context)
    assert isinstance(found, OpenIcebergSink)
    return found


def ids(table: str) -> list[int]:
    return sorted(row.id for row in spark.table(table).collect())


def branches(table: str) -> list[str]:
    """Return the branches but the main one."""
    return sorted(row.name for row in spark.table(f"{table}.refs").collect() if row.name != "main")


def procedure(call: str, table: str) -> None:
    spark.sql(call.format(table.partition(".")[2])).collect()


# -- one after the other -----------------------------------------------------------------------------------------------


@story
def once(table: str) -> None:
    sink = opened(made(table))
    transaction = prepared(sink, 1, 1, 2)
    assert ids(table) == []
    assert [left.name for left in sink.leftovers()] == [name(1)]
    assert sink.standing() == ()
    assert sorted(row.id for row in read_prepared(spark, transaction.prepared).collect()) == [1, 2]
    for again in (sink, sink, opened(table, RETRY)):
        assert again.commit(transaction)
    assert ids(table) == [1, 2]
    assert branches(table) == []
    assert sink.leftovers() == []
    assert sink.position().startswith("snapshot ")
    assert opened(table, RETRY).standing() == (name(1),)
    assert opened(table, TUESDAY).standing() == ()
    assert not sink.replaces
    assert sink.abort([name(1)]) == (name(1),)
    assert ids(table) == [1, 2]


@story
def rows_that_wait_are_read_alone(table: str) -> None:
    made(table, rows=2)
    waiting = prepared(opened(table), 1, 1, 2)
    assert sorted(row.id for row in read_prepared(spark, waiting.prepared).collect()) == [1, 2]
    overwriting = prepared(opened(table, TUESDAY, mode="overwrite"), 2, 3)
    assert sorted(row.id for row in read_prepared(spark, overwriting.prepared).collect()) == [3]


@story
def write_without_rows(table: str) -> None:
    sink = opened(made(table, rows=1))
    assert sink.commit(prepared(sink, 1))
    assert ids(table) == [1000]
    overwriting = opened(table, mode="overwrite")
    assert overwriting.commit(prepared(overwriting, 2))
    assert ids(table) == []


@story
def aborted_for_good(table: str) -> None:
    first, second = opened(made(table)), opened(table, RETRY)
    transaction = prepared(first, 1, 1, 2)
    assert second.abort([name(1)]) == ()
    assert branches(table) == []
    assert first.commit(transaction) is False
    assert second.abort([name(1)]) == ()
    assert second.abort([name(99)]) == ()
    assert ids(table) == []


@story
def abort_leaves_the_earlier_one(table: str) -> None:
    """A gated sink: the second write is given up, the first one is still to come."""
    made(table)
    for number, mode in ((1, "append"), (3, "overwrite")):
        sink = opened(table, mode=mode)
        first, _ = prepared(sink, number, number), prepared(sink, number + 1, 9)
        sink.abort([name(number + 1)])
        assert sink.commit(first)
    assert ids(table) == [3]


@story
def leftovers_of_another_run_are_aborted(table: str) -> None:
    monday, tuesday = opened(made(table)), opened(table, TUESDAY)
    transaction = prepared(monday, 1, 1)
    assert [left.history for left in tuesday.leftovers()] == [MONDAY.history]
    assert tuesday.abort([name(1)]) == ()
    assert monday.commit(transaction) is False
    assert ids(table) == []


@story
def branch_of_a_driver_that_died_before_it_wrote_is_a_leftover(table: str) -> None:
    sink = opened(made(table))
    real = OpenIcebergSink._write
    try:
        OpenIcebergSink._write = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
        with suppress(ZeroDivisionError):
            prepared(sink, 1, 1)
    finally:
        OpenIcebergSink._write = real  # type: ignore[method-assign]
    assert [left.history for left in opened(table, TUESDAY).leftovers()] == [MONDAY.history]
    opened(table, TUESDAY).abort([name(1)])
    assert branches(table) == []


@story
def branches_of_others_do_not_matter(table: str) -> None:
    sink = opened(made(table, rows=1))
    for branch in ("checkpoint_theirs", "audit", f"checkpoint_{name(77)}"):
        BranchedTable(spark, table)._load().java.manageSnapshots().createBranch(branch).commit()
    assert sink.leftovers() == []
    assert sink.commit(prepared(sink, 1, 1))
    assert len(branches(table)) == 3


@story
def overwrite_since_is_told_though_the_clean_up_fails(table: str) -> None:
    monday, tuesday = opened(made(table), mode="overwrite"), opened(table, TUESDAY, mode="overwrite")
    overwritten_though_the_clean_up_fails(monday, tuesday)
    assert ids(table) == [2]


@story
def later_run_has_the_last_word(table: str) -> None:
    monday = opened(made(table), mode="overwrite")
    tuesday = opened(table, TUESDAY, mode="overwrite")
    late = prepared(monday, 1, 1)
    assert tuesday.commit(prepared(tuesday, 2, 2))
    refused(OverwrittenSince, "a run that began later has overwritten it", lambda: monday.commit(late))
    assert monday.commit(late) is False
    assert ids(table) == [2]
    assert branches(table) == []
    cleared = opened(table, replace(MONDAY, generation=1), mode="overwrite")
    assert cleared.commit(prepared(cleared, 3, 3))
    assert ids(table) == [3]


@story
def table_remembers_the_newest_beginnings(table: str) -> None:
    made(table)
    runs = [replace(MONDAY, run=f"run {number}") for number in range(53)]
    numbers = [opened(table, run, mode="overwrite")._began for run in runs]
    assert numbers == list(range(1, 54))
    assert [opened(table, run, mode="overwrite")._began for run in runs[3:]] == numbers[3:]
    assert opened(table, runs[2], mode="overwrite")._began == 54


@story
def rows_of_a_run_are_replaced(table: str) -> None:
    sink = opened(made(table, run_column=True, rows=1), run_column=RUN)
    assert sink.replaces
    assert sink.commit(prepared(sink, 1, 1, 2))
    other = opened(table, replace(MONDAY, run="monday"), run_column=RUN)
    assert other.commit(prepared(other, 2, 3, run="monday"))
    assert sink.standing() == (name(1),)
    assert other.standing() == (name(2),)
    again = prepared(sink, 3, 4, replaces=(name(1),))
    append(table, 2000)
    for _ in range(2):
        assert sink.commit(again)
    assert ids(table) == [3, 4, 1000, 2000]
    assert branches(table) == []
    assert sink.standing() == (name(3),)
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    assert sink.standing() == ()


@story
def rows_that_the_script_does_not_write_any_more_are_taken_out(table: str) -> None:
    sink = opened(made(table, run_column=True, rows=1), run_column=RUN)
    for number in (1, 2):
        assert sink.commit(prepared(sink, number, number))
    other = opened(table, replace(MONDAY, run="monday"), run_column=RUN)
    assert other.commit(prepared(other, 3, 3, run="monday"))
    removal = removed(sink, 4, name(1), name(2))
    append(table, 2000)
    for _ in range(2):
        assert sink.commit(removal)
    assert ids(table) == [3, 1000, 2000]
    assert sink.standing() == ()


@story
def rows_of_an_overwrite_are_not_taken_out_alone(table: str) -> None:
    sink = opened(made(table), mode="overwrite")
    assert sink.commit(prepared(sink, 1, 1))
    refused(NotSupportedYet, "write(df.limit(0))", lambda: removed(sink, 2, name(1)))


@story
def rows_under_an_earlier_name_are_the_sinks_own(table: str) -> None:
    first = opened(made(table))
    assert first.commit(prepared(first, 1, 1))
    other = replace(RETRY, uid="rapport")
    for found in (opened(table, other).standing(), opened(table, other).later(0)):
        assert not found
    renamed = opened(table, replace(other, also=("report",)))
    assert renamed.commit(prepared(renamed, 2, 2))
    both = opened(table, replace(RETRY, also=("rapport",)))
    for sink in (renamed, both):
        assert sink.standing() == (name(1), name(2))
        assert [found.version for found in sink.later(0)] == [1, 2]


@story
def rows_that_another_run_column_marks_are_not_replaced(table: str) -> None:
    first = opened(made(table, run_column=True), run_column=RUN)
    assert first.commit(prepared(first, 1, 1))
    spark.sql(f"ALTER TABLE {table} ADD COLUMN made_by STRING")
    now = opened(table, RETRY, run_column="made_by")
    refused(RowsStand, "that run_column does not mark", now.standing)
    refused(NotSupportedYet, "run_column does not mark them", lambda: now.take_out([name(1)]))
    assert [found.version for found in now.later(0)] == [1]
    assert opened(table, RETRY, run_column=RUN).standing() == (name(1),)


@story
def rows_without_the_column_are_not_replaced(table: str) -> None:
    sink = opened(made(table, run_column=True))
    spark.sql(f"ALTER TABLE {table} DROP COLUMN {RUN}")
    assert sink.commit(prepared(sink, 1, 1))
    refused(InvalidConfig, f"ALTER TABLE {table} ADD COLUMN", lambda: opened(table, RETRY, run_column=RUN))
    spark.sql(f"ALTER TABLE {table} ADD COLUMN {RUN} STRING")
    refused(RowsStand, "that run_column does not mark", opened(table, RETRY, run_column=RUN).standing)
    assert opened(table, TUESDAY, run_column=RUN).standing() == ()


@story
def rows_of_later_runs_are_taken_out(table: str) -> None:
    sink = opened(made(table, run_column=True), run_column=RUN)
    made_by = {}
    for number, run in ((1, "a"), (2, "b \\ it's"), (3, "c")):
        of_run = opened(table, replace(MONDAY, run=run), run_column=RUN)
        made_by[number] = prepared(of_run, number, number, run=run)
        assert of_run.commit(made_by[number])
    later = sink.later(1)
    assert sorted((found.name, found.version, found.run) for found in later) == [
        (name(2), 2, "b \\ it's"),
        (name(3), 3, "c"),
    ]
    for _ in range(2):
        sink.take_out([found.name for found in later])
        assert sink.later(1) == []
    assert sink.taken_out([*made_by.values()]) == {name(2), name(3)}
    assert ids(table) == [1]


@story
def rows_without_a_run_are_taken_out_by_a_rollback(table: str) -> None:
    sink = opened(made(table))
    snapshots = []
    for number in (1, 2, 3):
        assert sink.commit(prepared(sink, number, number))
        snapshots.append(sink.position().rpartition(" ")[2])
    last = prepared(sink, 4, 4)
    assert [found.name for found in sink.later(1)] == [name(2), name(3)]
    refused(NotSupportedYet, "rollback_to_snapshot", lambda: sink.take_out([name(2)]))
    procedure(f"CALL ice.system.rollback_to_snapshot('{{}}', {snapshots[0]})", table)
    assert sink.later(1) == []
    assert sink.abort([name(2)]) == (name(2),)  # it stays as the person has decided
    assert sink.commit(last)
    assert ids(table) == [1, 4]
    assert [found.name for found in sink.later(1)] == [name(4)]


@story
def other_writers_do_not_matter(table: str) -> None:
    sink = opened(made(table))
    for number in (1, 2):
        transaction = prepared(sink, number, number)
        append(table, 10 * number)
        assert sink.commit(transaction)
        assert sink.commit(transaction)
    assert ids(table) == [1, 2, 10, 20]
    assert opened(table, RETRY).standing() == (name(1), name(2))
    overwriting = opened(table, mode="overwrite")
    transaction = prepared(overwriting, 3, 3)
    append(table, 30)
    assert overwriting.commit(transaction)
    assert overwriting.commit(transaction)
    assert ids(table) == [3]
    assert branches(table) == []


@story
def maintenance_leaves_rows_that_wait(table: str) -> None:
    made(table, rows=2)
    plain, report = opened(table), opened(table, mode="overwrite")
    first, last = prepared(plain, 1, 1), prepared(report, 3, 3)
    append(table, 2000)
    for call in (EXPIRE, ORPHANS):
        procedure(call, table)
    assert plain.commit(first)
    assert ids(table) == [1, 1000, 1001, 2000]
    assert report.commit(last)
    assert ids(table) == [3]
    for call in (EXPIRE, ORPHANS):
        procedure(call, table)
    assert ids(table) == [3]


@story
def maintenance_leaves_rows_that_replace_others(table: str) -> None:
    sink = opened(made(table, run_column=True), run_column=RUN)
    assert sink.commit(prepared(sink, 1, 1))
    again = prepared(sink, 2, 2, replaces=(name(1),))
    append(table, 2000)
    for call in (EXPIRE, ORPHANS):
        procedure(call, table)
    assert sink.commit(again)
    assert ids(table) == [2, 2000]


@story
def expired_snapshots_are_said(table: str) -> None:
    sink = opened(made(table))
    assert sink.commit(prepared(sink, 1, 1))
    transaction = prepared(sink, 2, 2)
    assert sink.commit(transaction)
    append(table, 1000)
    cleared = replace(MONDAY, generation=1, run_began=2_000_000_000.0)
    assert opened(table, cleared).standing() == (name(1), name(2))
    procedure(EXPIRE, table)
    refused(CommitStateUnknown, "snapshots have expired", lambda: opened(table, RETRY).commit(transaction))
    refused(SinkMoved, "nobody can tell which rows", lambda: sink.later(1))
    refused(RowsStand, "nobody can tell which rows", opened(table, replace(cleared, run_began=1.0)).standing)
    assert opened(table, cleared).standing() == ()
    assert ids(table) == [1, 2, 1000]


@story
def branch_that_somebody_removed_is_said(table: str) -> None:
    sink = opened(made(table))
    transaction = prepared(sink, 1, 1)
    BranchedTable(spark, table)._load().java.manageSnapshots().removeBranch(branches(table)[0]).commit()
    refused(Damaged, "Somebody removed it", lambda: sink.commit(transaction))
    assert ids(table) == []


@story
def wrong_tables_are_refused(table: str) -> None:
    refused(WrongUse, "Create it first", lambda: opened(table))
    made(table)
    sink = opened(table)
    held = prepared(sink, 2, 1)
    refused(InvalidConfig, "name the table", lambda: opened(f"{table}.`branch_checkpoint_{name(2)}`"))
    assert sink.commit(held)
    spark.conf.set("spark.wap.branch", "audit")
    refused(NotSupportedYet, "spark.wap.branch", lambda: opened(table))
    spark.conf.unset("spark.wap.branch")
    with suppress(Exception):
        sink.prepare(spark.range(1).selectExpr("id", "'x' AS other"), name(1), 1)
        raise AssertionError("rows with another column were taken")
    assert sink.abort([name(1)]) == ()
    assert branches(table) == []


# -- at the same moment ------------------------------------------------------------------------------------------------


@story
def raced(table: str) -> None:
    """Several drivers commit the same and other transactions at the same moment, while somebody aborts and others append."""
    made(table, rows=1)
    first = [prepared(opened(table), number, number) for number in range(RACERS)]
    begin, outcomes = threading.Barrier(2 * RACERS + 2), list[object]()

    def run(act: Callable[[], object]) -> None:
        begin.wait()
        outcomes.append(act())

    sinks = [opened(table, replace(MONDAY, attempt=number + 2)) for number in range(2 * RACERS + 1)]
    acts: list[Callable[[], object]] = [
        *(lambda sink=sink, of=of: sink.commit(of) for sink, of in zip(sinks, [*first, *first], strict=False)),
        lambda: sinks[-1].abort([name(0)]),
        lambda: append(table, 2000),
    ]
    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(outcomes) == len(acts), outcomes
    aborted = () in outcomes
    assert ids(table) == [*range(1 if aborted else 0, RACERS), 1000, 2000], outcomes
    assert branches(table) == []


def at_each_step(
    table: str,
    mode: str,
    meanwhile: Callable[[str, Transaction], None],
    *expected: list[int],
    replaces: bool = False,
    others: bool = False,
    **options: Any,
) -> None:
    """Let the first process sleep before each of its steps. With ``others``, somebody has appended a row before, so nothing is simply taken."""
    rounds = 0
    for number in range(1, MOST_STEPS):
        place = made(f"{table}_{number}", run_column="run_column" in options)
        sink = opened(place, mode=mode, **options)
        if replaces:
            assert sink.commit(prepared(sink, 7, 7))
        transaction = prepared(sink, 1, 1, 2, replaces=(name(7),) if replaces else ())
        if others:
            append(place, 3)
        asleep = opened(place, mode=mode, **options)
        steps = Steps(STEPS, number, lambda place=place, transaction=transaction: meanwhile(place, transaction))  # type: ignore[misc]
        with steps.asleep(), suppress(OverwrittenSince):
            asleep.commit(transaction)
        if not steps.slept:
            break
        rounds += 1
        assert ids(place) in expected, (number, ids(place))
        tidy = opened(place, replace(TUESDAY, run="wednesday"))
        tidy.abort([left.name for left in tidy.leftovers()])
        assert branches(place) == [], number
        assert ids(place) in expected, (number, ids(place))
    assert rounds >= 4, rounds


def retry_commits(table: str, transaction: Transaction) -> None:
    overwrites = "versionAsOf" in transaction.prepared["options"] and not transaction.prepared["where"]
    mode = "overwrite" if overwrites else "append"
    column = {"run_column": RUN} if transaction.prepared["where"] else {}
    with suppress(OverwrittenSince):
        opened(table, RETRY, mode=mode, **column).commit(transaction)


def tuesday_overwrites(table: str, _: Transaction) -> None:
    sink = opened(table, TUESDAY, mode="overwrite")
    sink.commit(prepared(sink, 9, 9))


def retry_commits_tuesday_overwrites(table: str, transaction: Transaction) -> None:
    retry_commits(table, transaction)
    tuesday_overwrites(table, transaction)


def run_starts_over(table: str, _: Transaction) -> None:
    sink = opened(table, replace(RETRY, generation=1), run_column=RUN)
    committed = sink.abort([name(1)])
    sink.commit(prepared(sink, 8, 8, replaces=(*committed, name(7))))


def retry_aborts(table: str, _: Transaction) -> None:
    opened(table, RETRY).abort([name(1)])


def others_append(table: str, _: Transaction) -> None:
    append(table, 9)


@story
def slept_while_a_retry_committed(table: str) -> None:
    at_each_step(table, "append", retry_commits, [1, 2])


@story
def slept_behind_others_while_a_retry_committed(table: str) -> None:
    at_each_step(table, "append", retry_commits, [1, 2, 3], others=True)


@story
def slept_while_a_retry_aborted(table: str) -> None:
    at_each_step(table, "append", retry_aborts, [], [1, 2])


@story
def slept_behind_others_while_a_retry_aborted(table: str) -> None:
    at_each_step(table, "overwrite", retry_aborts, [3], [1, 2], others=True)


@story
def slept_while_others_appended(table: str) -> None:
    at_each_step(table, "append", others_append, [1, 2, 9])


@story
def slept_in_an_overwrite_while_others_appended(table: str) -> None:
    at_each_step(table, "overwrite", others_append, [1, 2], [1, 2, 9])


@story
def slept_while_the_run_started_over(table: str) -> None:
    at_each_step(table, "append", run_starts_over, [8], run_column=RUN)


@story
def slept_in_a_replacement_while_the_run_started_over(table: str) -> None:
    at_each_step(table, "append", run_starts_over, [8], run_column=RUN, replaces=True)


@story
def slept_while_tuesday_overwrote(table: str) -> None:
    at_each_step(table, "overwrite", tuesday_overwrites, [9])


@story
def slept_while_a_retry_committed_and_tuesday_overwrote(table: str) -> None:
    at_each_step(table, "overwrite", retry_commits_tuesday_overwrites, [9], others=True)


def inside(table: str, mode: str, meanwhile: Callable[[str, Transaction], None], **options: Any) -> None:
    """The first process sleeps just before the catalog gets its commit: all of it is written."""
    transaction = prepared(opened(made(table), mode=mode, **options), 1, 1, 2)
    asleep, slept = opened(table, mode=mode, **options), list[bool]()
    real = asleep._publication

    def publication(*args: Any) -> Callable[[Any], None]:
        change = real(*args)

        def publish(iceberg: Any) -> None:
            change(iceberg)
            if not slept:
                slept.append(True)
                meanwhile(table, transaction)

        return publish

    asleep._publication = publication  # type: ignore[assignment,method-assign]
    with suppress(OverwrittenSince):
        asleep.commit(transaction)
    assert slept
    assert branches(table) == []


@story
def inside_of_a_commit_while_a_retry_committed(table: str) -> None:
    inside(table, "append", retry_commits)
    assert ids(table) == [1, 2]


@story
def inside_of_a_commit_while_a_retry_aborted(table: str) -> None:
    inside(table, "append", retry_aborts)
    assert ids(table) == []


@story
def inside_of_a_commit_while_others_appended(table: str) -> None:
    inside(table, "append", others_append)
    assert ids(table) == [1, 2, 9]


@story
def inside_of_an_overwrite_while_tuesday_overwrote(table: str) -> None:
    inside(table, "overwrite", tuesday_overwrites)
    assert ids(table) == [9]


@story
def inside_of_an_overwrite_while_others_appended(table: str) -> None:
    inside(table, "overwrite", others_append)
    assert ids(table) == [1, 2]


if __name__ == "__main__":
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.db")
    tell_stories(lambda title: f"ice.db.{title}")
