"""Delta tables as Delta's log and its offsets name them, played without Spark. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.errors import Damaged, Declined, SinkMoved
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import (
    Edge,
    QueryDetail,
    delta_commit,
    delta_version,
    iceberg_number,
    iceberg_snapshot,
)
from airflow_checkpoint_provider.protocol.wording import sink_is_ahead
from airflow_checkpoint_provider.spark.queries.flows.delta import DeltaFlow, Read
from airflow_checkpoint_provider.spark.queries.location.table_move import TableMove
from airflow_checkpoint_provider.spark.queries.sinks import delta
from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import Commit, DeltaOffset, commit_in
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage.memory import MemoryStore

FILE = File(name="part-0.parquet", bytes=10, rows=0)


def offset(version: int, index: int = -1, *, starts: bool = False, table: str = "old") -> dict[str, Any]:
    """Return an offset as Delta 4.4 writes it."""
    about = {"sourceVersion": 1, "reservoirId": table, "reservoirVersion": version}
    return {**about, "index": index, "isStartingVersion": starts}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(offset(3), Read(3, 3), id="all before a commit"),
        pytest.param(offset(3, -100), Read(3, 3), id="all before a commit, in another spelling"),
        pytest.param(offset(3, 4), Read(3, 4), id="some files of a commit"),
        pytest.param(offset(3, 4, starts=True), Read(0, 4), id="some files of the whole table"),
        pytest.param(offset(3, starts=True), Read(0, 0), id="no file of the whole table"),
    ],
)
def test_offset_says_which_commits_were_read(written: dict[str, Any], read: Read) -> None:
    assert Read.parse(json.dumps(written)) == read


@pytest.mark.parametrize(
    "commit",
    [
        None,
        "",
        "part-0.parquet",
        "_delta_log/3.json",
        "_delta_log/0000000000000000000x.json",
        f"_delta_log/{'9' * 4301}.json",
    ],
)
def test_what_is_no_commit_has_no_version(commit: str | None) -> None:
    assert delta_version(commit) is None
    assert delta_version(delta_commit(3)) == 3


@pytest.mark.parametrize("snapshot", [None, "", "snapshot/x", "snapshot/-1", "snapshot/٣", f"snapshot/{'9' * 4301}"])
def test_what_is_no_snapshot_has_no_number(snapshot: str | None) -> None:
    assert iceberg_number(snapshot) is None
    assert iceberg_number(iceberg_snapshot(3)) == 3


def detail(newest_file: str | None) -> QueryDetail:
    return QueryDetail(
        location="query/rows/1-abc", batch=4, begun=4, sink="delta", path="s3a://lake/t", sources={}, watermark_ms=0, newest_file=newest_file
    )  # fmt: skip


def test_refusal_to_go_back_names_the_version_to_which_the_table_is_restored() -> None:
    said = sink_is_ahead("rows", "s3a://lake/t", detail(delta_commit(12)))
    assert "RESTORE TABLE delta.`s3a://lake/t` TO VERSION AS OF 12 (this also removes what others have written" in said
    assert "delta.`/lake/a``b`" in sink_is_ahead("rows", "/lake/a`b", detail(delta_commit(12)))
    assert "no longer says which commit wrote batch 4" in sink_is_ahead("rows", "s3a://lake/t", detail(None))


@pytest.mark.parametrize("of_one_driver", [True, False])
def test_log_store_for_one_driver_is_named_at_the_start(
    of_one_driver: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query that is only read, because it is not started, writes nothing."""
    table = SimpleNamespace(folder="s3a://lake/t", one_driver_only=of_one_driver)
    monkeypatch.setattr(delta, "DeltaTable", lambda spark, path: table)
    for writer in (None, SimpleNamespace()):
        DeltaStreamSink(cast(Any, None), "rows", Target("delta", "s3a://lake/t"), cast(Any, writer))
    found = capsys.readouterr().out
    assert found.startswith("query 'rows': Delta writes the log of s3a://lake/t with S3Single" if of_one_driver else "")
    assert found.count("[CKP165]") == of_one_driver


class Table:
    """A table with the id ``new`` and these commits, the oldest first."""

    id, folder = "new", "file:/t"

    def __init__(self, *commits: Commit) -> None:
        self._commits = commits

    def commits(self, first: int, last: int | None = None) -> Iterator[Commit]:
        return (commit for commit in reversed(self._commits) if commit.version >= first)

    @property
    def version(self) -> int:
        return self._commits[-1].version

    def first_of(self, query_id: str) -> Commit | None:
        return next((commit for commit in self._commits if query_id in commit.batches), None)


def moved(table: Table, before: dict[str, Any], *in_flight: File) -> dict[str, Any]:
    """Return the offset of a second source when its query begins on ``table``."""
    own = Location(MemoryStore(), "rows")
    lines = ["v1", '{"batchWatermarkMs": 0}', '{"logOffset":7}', json.dumps(before)]
    own.store.overwrite(own.key_of("offsets/4"), "\n".join(lines).encode())
    own.store.overwrite(own.key_of("offsets/3"), "\n".join([*lines[:3], json.dumps(offset(0, table="new"))]).encode())
    own.store.overwrite(own.key_of("commits/4"), b"v1")
    sink = cast(DeltaStreamSink, SimpleNamespace(table=table, query_id="id"))
    TableMove("copy", 1, Edge(upstream="rows", path="file:/t", in_flight=in_flight), sink).carry_out(own)
    *others, last = own.read("offsets/4").decode().split("\n")
    assert others == lines[:3]
    found: dict[str, Any] = json.loads(last)
    return found


def test_source_of_a_fork_begins_behind_the_first_commit_of_its_upstream() -> None:
    table = Table(Commit(0, {"other": 9}, (FILE,)), Commit(1, {"id": 4}, ()), Commit(2, {"id": 5}, (FILE,)))
    assert moved(table, offset(30, 2)) == offset(2, table="new")


def test_source_of_a_fork_reads_the_first_batch_of_all() -> None:
    """The upstream had committed nothing, so its first commit has rows, or is not there yet."""
    assert moved(Table(Commit(0, {}, ()), Commit(1, {"id": 0}, (FILE,))), offset(30)) == offset(1, table="new")
    assert moved(Table(Commit(0, {}, ())), offset(30)) == offset(0, table="new")


def test_source_goes_on_behind_a_table_that_was_taken_back() -> None:
    commits = [Commit(2, {"id": 5}, (FILE,)), Commit(3, {}, (), restored_to=1), Commit(4, {"id": 18}, ())]
    assert moved(Table(*commits), offset(2, table="new")) == offset(4, table="new")
    assert moved(Table(*commits), offset(4, 1, table="new")) == offset(4, 1, table="new")


def test_rows_that_are_not_in_flight_any_more_are_refused() -> None:
    with pytest.raises(SinkMoved, match="which are not in flight any more"):
        moved(Table(Commit(0, {"id": 4}, ())), offset(30), FILE)
    of_another = [Commit(2, {"other": 5}, (FILE,)), Commit(3, {"id": 5}, (FILE,)), Commit(4, {}, (), restored_to=2)]
    with pytest.raises(SinkMoved, match="which are not in flight any more"):
        moved(Table(*of_another), offset(2, table="new"))


# -- going on, and going back ------------------------------------------------------------------------------------------


class StreamSink(DeltaStreamSink):
    """The sink of the query ``id`` in a table that nobody has to open."""

    def __init__(self, table: Table) -> None:
        self.uid, self.table = "rows", cast(Any, table)

    query_id = "id"


OWN, MARK = ({"id": 1}, (FILE,)), ({"id": 9}, ())
OTHER = ({"other": 3}, (FILE,))


def table(*commits: tuple[dict[str, int], tuple[File, ...]] | int) -> Table:
    """Return a table with these commits after version 0; a number restores it to that version."""
    return Table(
        Commit(0, {"id": 0}, (FILE,)),
        *(
            Commit(version, {}, (), restored_to=one) if isinstance(one, int) else Commit(version, *one)
            for version, one in enumerate(commits, 1)
        ),
    )


@pytest.mark.parametrize(
    ("commits", "ahead"),
    [
        pytest.param((), False, id="nothing since"),
        pytest.param((OTHER, MARK), False, id="rows of others, and a batch without rows"),
        pytest.param((OWN,), True, id="own rows"),
        pytest.param((OWN, 0), False, id="restored"),
        pytest.param((OWN, 0, OTHER), False, id="others write after the restore"),
        pytest.param((OWN, 0, OWN), True, id="own rows after the restore"),
        pytest.param((OWN, OWN, 1), True, id="restored to a version with own rows"),
        pytest.param((OTHER, OWN, 1), False, id="restored to a version with rows of others"),
        pytest.param((OWN, 0, -1), True, id="restored to a moment"),
        pytest.param((OWN, 0, OTHER, 2), False, id="restored, and then the rows of others taken out"),
        pytest.param((OWN, OTHER, 0, OTHER, 2), True, id="the restore was taken out"),
    ],
)
def test_table_is_ahead_of_a_commit_if_it_holds_rows_of_the_query_behind_it(commits: Any, ahead: bool) -> None:
    assert StreamSink(table(*commits))._is_ahead(0) == ahead


def test_table_that_lacks_rows_of_the_commit_itself_is_refused_too() -> None:
    """Somebody has restored it to that commit, and then to an older one."""
    assert StreamSink(table(OTHER, OWN, OWN, 2, 0))._is_ahead(2)
    assert StreamSink(table(OTHER, OWN, 0, OTHER, 3))._is_ahead(2)
    assert not StreamSink(table(OTHER, OWN, 0, OTHER, 2))._is_ahead(2)


def test_commits_that_the_log_does_not_have_any_more_may_hold_rows() -> None:
    assert StreamSink(Table(Commit(5, *OTHER)))._is_ahead(0)


@pytest.mark.parametrize(
    ("commits", "lacks"),
    [
        pytest.param((OWN, OTHER), None, id="no restore"),
        pytest.param((OWN, 0), 1, id="restored"),
        pytest.param((OWN, 0, OTHER), 1, id="others write after the restore"),
        pytest.param((OWN, OTHER, 1), None, id="rows of others taken out"),
        pytest.param((OWN, 0, MARK), None, id="gone back"),
        pytest.param((OWN, 0, 1), None, id="undone"),
        pytest.param((OWN, 0, OTHER, 2), 1, id="restored, and then the rows of others taken out"),
        pytest.param((OWN, 0, OTHER, OTHER, 4, 3), 1, id="restored three times"),
        pytest.param((OWN, 0, OTHER, 1), None, id="undone, others have written meanwhile"),
        pytest.param((OWN, OWN, 1, OTHER, 3), 2, id="restored to own rows"),
        pytest.param((OWN, 0, MARK, 2), None, id="the mark of a way back taken out"),
        pytest.param((OWN, 0, OWN, 2), 3, id="new rows taken out"),
    ],
)
def test_table_that_was_taken_back_below_the_query_is_seen(commits: Any, lacks: int | None) -> None:
    assert StreamSink(table(*commits))._taken_back()[1] == lacks


def test_refusal_names_the_restore_that_took_the_rows_out() -> None:
    """A later one took out only the rows of others."""
    with pytest.raises(
        SinkMoved, match=r"was restored to version 0, and lacks rows .* up to version 1\. .* TO VERSION AS OF 1"
    ):
        StreamSink(Forgetful(*table(OWN, 0, OTHER, 2)._commits))._refuse_taken_back(Position(1, 1))


# -- reading what another query writes -----------------------------------------------------------------------------------


def flow(table: Table, read: dict[str, Any]) -> DeltaFlow:
    """Return what runs to a query that has read the table up to there by the end of its batch 0."""
    own = Location(MemoryStore(), "copy")
    own.store.overwrite(own.key_of("offsets/0"), f'v1\n{{"batchWatermarkMs": 0}}\n{json.dumps(read)}'.encode())
    downstream = SimpleNamespace(
        uid="copy", upstreams={"rows": [SimpleNamespace(offset=0)]}, located=SimpleNamespace(own=own)
    )
    return DeltaFlow(cast(Any, SimpleNamespace(uid="rows")), cast(Any, downstream), StreamSink(table))


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(offset(4), id="after a commit"),
        pytest.param(offset(5, 0, starts=True), id="some of the whole table"),
    ],
)
def test_commits_that_the_log_does_not_have_any_more_may_be_in_flight(read: dict[str, Any]) -> None:
    of_others = Table(Commit(5, *OTHER))
    with pytest.raises(
        Declined,
        match=r"has yet to read commits of file:/t from [04] on, but the table's log no longer holds the commits before 5",
    ):
        flow(of_others, read).measure([Position(9, 9)], [Position(0, 0)])


def test_commits_before_the_first_batch_of_the_upstream_do_not_matter() -> None:
    found = flow(Table(Commit(5, {"id": 0}, (FILE,)), Commit(6, *OTHER)), offset(6, 0, starts=True))
    found.measure([Position(0, 0)], [Position(0, 0)])
    assert not found.aligned(Position(0, 0), Position(0, 0))


def test_commits_that_were_read_may_be_gone() -> None:
    found = flow(Table(Commit(5, *OWN), Commit(6, *OTHER)), offset(5))
    found.measure([Position(1, 1)], [Position(0, 0)])
    assert found.consistent(Position(1, 1), Position(0, 0))
    assert not found.aligned(Position(1, 1), Position(0, 0))


# -- batches that the table has forgotten --------------------------------------------------------------------------------


class Forgetful(Table):
    """A table that has forgotten the batches of the query ``id``, and what it is told."""

    def __init__(self, *commits: Commit) -> None:
        super().__init__(*commits)
        self.told: list[int] = []

    def newest_batch(self, query_id: str) -> int:
        return max(self.told, default=-1)

    def logged_batch(self, query_id: str) -> int:
        return max((commit.batches.get(query_id, -1) for commit in self._commits), default=-1)


class Told(StreamSink):
    def _mark(self, batch: int) -> None:
        cast(Forgetful, self.table).told.append(batch)


def test_table_is_told_the_newest_batch_of_its_log() -> None:
    """That is the one that had begun: with the mark, Delta leaves it out."""
    forgetful = Forgetful(Commit(0, {"id": 0}, (FILE,)), Commit(1, *OWN), Commit(2, *OTHER))
    sink = Told(forgetful)
    sink.rewrite_batch_marker(Position(1, 0))
    assert forgetful.told == [1]
    sink.check_can_continue(Position(1, 0), {"file:/t"})


def test_table_that_was_taken_back_is_told_nothing() -> None:
    forgetful = Forgetful(Commit(0, {"id": 0}, (FILE,)), Commit(1, *OWN), Commit(2, {}, (), restored_to=0))
    with pytest.raises(SinkMoved, match="was restored to version 0, and lacks rows"):
        Told(forgetful).rewrite_batch_marker(Position(1, 1))
    assert forgetful.told == []


def test_table_whose_log_does_not_know_the_query_is_refused() -> None:
    sink = Told(Forgetful(Commit(0, *OTHER)))
    sink.rewrite_batch_marker(Position(1, 1))
    with pytest.raises(
        SinkMoved, match=r"no batches any more: it would lack 2 of them.*restore JOB --from … --rewind-sink`"
    ):
        sink.check_can_continue(Position(1, 1), {"file:/t"})


def test_way_back_counts_the_batches_of_the_log() -> None:
    forgetful = Forgetful(Commit(0, {"id": 4}, (FILE,)), Commit(1, *OTHER))
    saved = replace(detail(delta_commit(0)), path="file:/t")
    assert Told(forgetful).plan_rewind(saved, allowed=False) == GoneBack(
        batch=4, sink="file:/t", newest_file=delta_commit(0)
    )


@pytest.mark.parametrize(
    "line",
    [
        '{"txn":{"appId":"id","version":1e999}}',
        "[" * 100_000,
        '{"add":{"path":"x","size":-1,"dataChange":true}}',
        '{"add":{"path":"x","size":Infinity,"dataChange":true}}',
        '{"add":{"path":"x"}}',
        '{"txn":7}',
        '{"commitInfo":{"operation":"RESTORE","operationParameters":7}}',
        '{"commitInfo":{"operation":"RESTORE","operationParameters":{"version":"x"}}}',
        '{"txn":{"appId":"id","version":' + "9" * 5000 + "}}",
    ],
)
def test_commit_that_delta_never_writes_is_damaged(line: str) -> None:
    with pytest.raises(Damaged, match="the log is not what Delta writes"):
        commit_in(line, 3, "the log")


@pytest.mark.parametrize("text", ["", "7", "[" * 100_000, json.dumps(offset(1)).replace("1", "1e999"), "{}", "null"])
def test_offset_that_delta_never_writes_is_damaged(text: str) -> None:
    with pytest.raises(Damaged, match="is not what Delta writes"):
        DeltaOffset.parse(text)
