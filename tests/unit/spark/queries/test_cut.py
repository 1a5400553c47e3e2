"""Cuts over a chain of queries whose steps hypothesis mixes: run on from any cut, each row is there once. Runs anywhere.

The queries are played here, and what they leave behind is as Spark writes it: logs of offsets, commits, sources and sinks. ``Cut`` is
the real one. While it waits, the queries take their next steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.file_sink.log import SinkFile
from airflow_checkpoint_provider.location.files import NOTHING, Location, Position
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import Edge
from airflow_checkpoint_provider.spark.checkpoints.copies import TooLate
from airflow_checkpoint_provider.spark.queries import cut
from airflow_checkpoint_provider.spark.queries.cut import Cut, CutPosition, chosen, linked_queries
from airflow_checkpoint_provider.spark.queries.flows.delta import DeltaFlow
from airflow_checkpoint_provider.spark.queries.flows.files import FileFlow
from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import Commit
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.sources.sources import Source
from airflow_checkpoint_provider.storage.memory import MemoryStore

Rows = tuple[int, ...]


@dataclass
class PlayedSink:
    """A sink and its log: the files of each batch."""

    path: str
    batches: list[list[SinkFile]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    """What the queries do as soon as the log was read."""

    @property
    def log(self) -> PlayedSink:
        return self

    def written(self, since: int, after: int) -> list[tuple[int, SinkFile]]:
        found = [(number, file) for number, files in enumerate(self.batches) if number > after for file in files]
        self.meanwhile()
        return found

    def flow(self, upstream: Any, downstream: Any) -> FileFlow:
        return FileFlow(upstream, downstream, cast(FileStreamSink, self))

    def named(self, files: Iterable[SinkFile]) -> tuple[File, ...]:
        return tuple(File(name=file.path.rpartition("/")[2], bytes=1, rows=0) for file in files)


@pytest.fixture(autouse=True)
def _flows_of_played_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "flow_between", lambda upstream, downstream: upstream.sink.flow(upstream, downstream))


class Played:
    """A query: each batch reads what is there, at most ``limit`` files, in one step; writes it in the next one; and then commits."""

    def __init__(self, uid: str, upstream: Played | None, store: MemoryStore, limit: int) -> None:
        self.uid, self._upstream, self._limit = uid, upstream, limit
        self.located = SimpleNamespace(own=Location(store, uid))
        self.sink = PlayedSink(f"memory:/{uid}")
        self.upstreams = {upstream.uid: [Source(0, 0, upstream.sink.path)]} if upstream else {}
        self.paused, self.caught_up, self.alive = False, True, True
        self.rows: dict[str, Rows] = {}  # file -> what is in it
        self.read: list[list[str]] = []  # the files of each batch
        self._steps = 0

    def runs(self) -> bool:
        return self.alive

    @property
    def in_a_batch(self) -> bool:
        return self._steps % 3 > 0

    def step(self) -> None:
        if self.alive:
            batch, part = divmod(self._steps, 3)
            self._steps += (self._read, self._write, self._commit)[part](batch)

    def _put(self, name: str, *lines: str) -> None:
        self.located.own.store.overwrite(self.located.own.key_of(name), "\n".join(("v1", *lines)).encode())

    def _read(self, batch: int) -> bool:
        """Begin a batch. A query that has nothing to read begins none; the first query always finds a row."""
        known = {name for names in self.read for name in names}
        there = [file for files in self._upstream.sink.batches for file in files] if self._upstream else []
        new = [file.path for file in there if file.path not in known][: self._limit]
        if self._upstream and not new:
            return False
        self.read.append(new)
        self._put(f"sources/0/{batch}", *(json.dumps({"path": path, "batchId": batch}) for path in new))
        self._put(f"offsets/{batch}", '{"batchWatermarkMs": 0}', json.dumps({"logOffset": batch}))
        return True

    def _write(self, batch: int) -> bool:
        """Write a row of each file that was read: two files at once, if there are more."""
        rows = [row for path in self.read[batch] for row in self.found(path)] if self._upstream else [batch]
        half = (len(rows) + 1) // 2
        files = [SinkFile(f"{self.sink.path}/part-{batch}-{n}", "") for n in range(2 if rows[half:] else 1)]
        self.rows |= {file.path: tuple(part) for file, part in zip(files, (rows[:half], rows[half:]), strict=False)}
        self.sink.batches.append(files)
        return True

    def _commit(self, batch: int) -> bool:
        self._put(f"commits/{batch}")
        return True

    def found(self, path: str) -> Rows:
        assert self._upstream
        return self._upstream.rows[path]

    def up_to(self, batch: int) -> Counter[int]:
        """Return the rows that the query has read by the end of a batch."""
        if not self._upstream:
            return Counter(range(batch + 1))
        return Counter(row for names in self.read[: batch + 1] for path in names for row in self.found(path))


class PlayedTable(PlayedSink):
    """A Delta table: a batch is one commit, and after each lies another writer's, without rows."""

    query_id = "id"

    @property
    def table(self) -> PlayedTable:
        return self

    @property
    def version(self) -> int:
        found = 2 * len(self.batches) - 1
        self.meanwhile()
        return found

    def commits(self, first: int, last: int) -> Iterator[Commit]:
        for version in range(last, first - 1, -1):
            batch, of_other = divmod(version, 2)
            files = () if of_other else self.named(self.batches[batch])
            yield Commit(version, {"other" if of_other else "id": batch}, files)

    def flow(self, upstream: Any, downstream: Any) -> DeltaFlow:  # type: ignore[override]
        return DeltaFlow(upstream, downstream, cast(DeltaStreamSink, self))


class PlayedOnTables(Played):
    """A query that reads and writes tables. It may read one of the two files of a commit."""

    def __init__(self, uid: str, upstream: Played | None, store: MemoryStore, limit: int) -> None:
        super().__init__(uid, upstream, store, limit)
        self.sink = PlayedTable(self.sink.path)

    def _read(self, batch: int) -> bool:
        if not super()._read(batch):
            return False
        if self._upstream:
            read = [path for names in self.read for path in names]
            commits = self._upstream.sink.batches
            whole = [all(file.path in read for file in files) for files in commits]
            version = whole.index(False) if False in whole else len(commits)
            index = sum(file.path in read for file in commits[version]) - 1 if version < len(commits) else -1
            offset = {
                "reservoirId": "table",
                "reservoirVersion": 2 * version,
                "index": index,
                "isStartingVersion": False,
            }
            self._put(f"offsets/{batch}", '{"batchWatermarkMs": 0}', json.dumps(offset))
        return True


class Chain:
    """Three queries, each of which reads what the one before writes, and the steps that they have yet to take."""

    def __init__(self, steps: Sequence[int], limits: Sequence[int], kind: type[Played] = Played) -> None:
        store, before = MemoryStore(), None
        self.queries: dict[str, Any] = {}
        for uid, limit in zip("abc", limits, strict=True):
            self.queries[uid] = before = kind(uid, before, store, limit)
            before.sink.meanwhile = self.meanwhile
        self._steps = list(steps)
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Take the next steps. When none are left, the first query ends its batch, and the others read to the end."""
        self.now += seconds
        for _ in range(3):
            self.step()

    def meanwhile(self) -> None:
        """Take a step inside of a look."""
        if self._steps:
            self.step()

    def step(self) -> None:
        queries = list(self.queries.values())
        if self._steps:
            queries[self._steps.pop()].step()
        else:
            for query in queries if queries[0].in_a_batch else queries[1:]:
                query.step()

    def monotonic(self) -> float:
        return self.now

    def check(self) -> None:
        if self.now > 500:
            raise TooLate


def places(chain: Chain, before: int, config: CheckpointConfig) -> dict[str, CutPosition]:
    """Return where the queries are cut, when the trigger comes after some of their steps."""
    for _ in range(before):
        chain.step()

    taken = Cut(chain.queries, config)
    return {uid: taken.of(uid, chain.check) for uid in chain.queries}


def run_on(chain: Chain, found: dict[str, CutPosition]) -> dict[str, Counter[int]]:
    """Return what each query has read in all if all are restored at their places, and the first one reads rows up to 99."""
    rows: dict[str, Counter[int]] = {}
    later = Counter(range(found["a"].position.committed + 1, 100))  # what the query before writes from there on
    for uid, query in chain.queries.items():
        edges = {edge.upstream: edge for edge in found[uid].edges}
        for upstream, edge in edges.items():
            other = chain.queries[upstream]
            waiting = {f"{other.sink.path}/{file.name}" for file in edge.in_flight}
            if isinstance(
                query, PlayedOnTables
            ):  # of a commit that was read in part, its offset says which of its files were
                waiting -= {path for names in query.read[: found[uid].position.committed + 1] for path in names}
            later += Counter(row for file in waiting for row in other.rows[file])
        rows[uid] = query.up_to(found[uid].position.committed) + later
    return rows


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=10, max_size=40).map(
    lambda turns: [query for query, times in turns for _ in range(times)]
)
"""A query takes some steps, then another one."""
LIMITS = st.tuples(st.just(0), st.sampled_from([1, 2, 99]), st.sampled_from([1, 3, 99]))
CONFIGS = st.sampled_from(
    [CheckpointConfig(), CheckpointConfig(aligned_timeout="0 s"), CheckpointConfig(aligned_timeout="2 s")]
)
EACH_ROW_ONCE = Counter(range(100))


def look(patch: pytest.MonkeyPatch, examples: int, kind: type[Played] = Played) -> None:
    """Raise ``AssertionError`` for a cut from which a row is lost or doubled."""

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(STEPS, st.integers(5, 60), LIMITS, CONFIGS)
    def cuts(steps: list[int], before: int, limits: tuple[int, ...], config: CheckpointConfig) -> None:
        chain = Chain(steps, limits, kind)
        patch.setattr(cut, "time", chain)
        found = places(chain, before, config)
        assert run_on(chain, found) == dict.fromkeys(chain.queries, EACH_ROW_ONCE)
        if config.aligned_timeout is None:
            assert not any(edge.in_flight for place in found.values() for edge in place.edges)

    cuts()


@pytest.mark.parametrize("kind", [Played, PlayedOnTables])
def test_each_row_is_there_once_from_any_cut(monkeypatch: pytest.MonkeyPatch, kind: type[Played]) -> None:
    look(monkeypatch, 300, kind)


def _newest_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileFlow, "consistent", lambda *_: True)


def _newest_of_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaFlow, "consistent", lambda *_: True)


def _nothing_waits_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaFlow, "_waiting", lambda *_: [])


def _commits_behind_the_oldest_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what the downstream may not have read did not count."""
    written = DeltaFlow._written
    monkeypatch.setattr(DeltaFlow, "_written", lambda flow, _, oldest, newest: written(flow, 10**9, oldest, newest))


def _log_of_the_table_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = DeltaFlow._written
    monkeypatch.setattr(DeltaFlow, "_written", lambda flow, *at: [] if flow._newest is not None else written(flow, *at))


def _begun_of_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    consistent = FileFlow.consistent
    monkeypatch.setattr(
        FileFlow, "consistent", lambda flow, up, down: consistent(flow, Position(up.begun, up.committed + 1), down)
    )


def _nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = FileFlow.edge

    def empty(*at: Any) -> Edge:
        found = edge(*at)
        return Edge(upstream=found.upstream, path=found.path, ahead=found.ahead)

    monkeypatch.setattr(FileFlow, "edge", empty)


def _log_of_the_sink_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a later look did not see what the upstream has written since."""
    read = FileFlow._read_log
    monkeypatch.setattr(FileFlow, "_read_log", lambda flow, since: flow._batches or read(flow, since))


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        *((bug, Played) for bug in (_newest_of_all, _begun_of_the_upstream, _nothing_in_flight)),
        (_log_of_the_sink_read_once, Played),
        *((bug, PlayedOnTables) for bug in (_newest_of_all_tables, _nothing_waits_in_a_table)),
        *((bug, PlayedOnTables) for bug in (_commits_behind_the_oldest_batch_alone, _log_of_the_table_read_once)),
    ],
    ids=lambda one: one.__name__,
)
def test_a_bug_in_the_cut_is_seen(
    bug: Callable[[pytest.MonkeyPatch], None], kind: type[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        look(monkeypatch, 300, kind)


@pytest.mark.parametrize(("aligned", "soonest", "latest"), [("0 s", 0.0, 0.0), ("2 s", 2.0, 3.0)])
def test_queries_that_cannot_be_aligned_are_waited_for_as_long_as_the_option_says(
    monkeypatch: pytest.MonkeyPatch, aligned: str, soonest: float, latest: float
) -> None:
    chain = Chain([0] * 9, (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    chain.queries["b"].step = lambda: None  # its batch takes long
    found = places(chain, 9, CheckpointConfig(aligned_timeout=aligned))
    assert soonest <= chain.now <= latest
    assert soonest <= found["b"].alignment_s <= latest
    assert len(found["b"].edges[0].in_flight) == 3


def test_query_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It will never read what is in flight, so a cut without that never comes."""
    chain = Chain([2] * 3 + [1] * 3 + [0] * 6, (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    chain.queries["b"].alive = False
    found = places(chain, 6, CheckpointConfig())
    assert (chain.now, len(found["b"].edges[0].in_flight)) == (0.0, 2)


def test_query_that_has_read_what_never_will_be_committed_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain([1, 1, 1, 0, 0], (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    for query in chain.queries.values():
        query.alive = query.uid != "c"
    for _ in range(5):
        chain.step()
    for query in chain.queries.values():
        query.alive = False
    with pytest.raises(Declined, match="query 'a' has ended before it committed what 'b' has read"):
        places(chain, 0, CheckpointConfig())


@pytest.mark.parametrize("aligned", [None, "0 s", "2 s"])
@pytest.mark.parametrize("steps", ["aabbb", "aabbbccc"])
def test_query_that_has_ended_before_its_commit_is_named(
    monkeypatch: pytest.MonkeyPatch, aligned: str | None, steps: str
) -> None:
    """Others have read what it has written, and read on. Nothing that may come fits."""
    chain = Chain([], (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    for uid in steps:
        chain.queries[uid].step()
    chain.queries["a"].alive = False
    with pytest.raises(Declined, match="query 'a' has ended before it committed what 'b' has read"):
        places(chain, 0, CheckpointConfig(aligned_timeout=aligned))
    assert chain.now == 0.0


def test_rows_that_were_made_of_what_was_not_committed_are_traced_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second query has an older batch that fits, but the third one has read a newer one."""
    chain = Chain([], (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    for uid in "aaabbbaa":
        chain.queries[uid].step()
    taken = Cut(chain.queries, CheckpointConfig())
    taken._oldest = {"a": 0, "b": 0, "c": NOTHING}
    for uid in "bbbcccccc":
        chain.queries[uid].step()
    taken._oldest["c"] = 1
    chain.queries["a"].alive = False
    with pytest.raises(Declined, match="query 'a' has ended before it committed what 'c' has read"):
        taken.of("a", chain.check)


def test_expired_checkpoint_says_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain([0, 0, 0] * 3, (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    chain.queries["b"].step = lambda: None

    def late() -> None:
        raise TooLate("its files were not copied")

    for _ in range(9):
        chain.step()
    with pytest.raises(
        TooLate, match="the queries a, b, c were not aligned: one had yet to read what another one writes"
    ):
        Cut(chain.queries, CheckpointConfig()).of("a", late)


def flow(upstream: str, downstream: str) -> Any:
    return SimpleNamespace(upstream=SimpleNamespace(uid=upstream), downstream=SimpleNamespace(uid=downstream))


def at(*batches: int) -> list[Position]:
    return [Position(batch, batch) for batch in batches]


def test_newest_positions_that_fit_are_chosen() -> None:
    def fits(_: Any, upstream: Position, downstream: Position) -> bool:
        return downstream.committed == 6 + upstream.committed

    flows = [flow("a", "b")]
    assert chosen({"a": at(3, 2), "b": at(9, 8)}, flows, fits) == {"a": Position(3, 3), "b": Position(9, 9)}
    assert chosen({"a": at(2), "b": at(9, 8)}, flows, fits) == {"a": Position(2, 2), "b": Position(8, 8)}
    assert chosen({"a": at(NOTHING), "b": at(9, 8)}, flows, fits) is None


def test_reader_for_which_nothing_fits_is_found_soon() -> None:
    """However many others there are, each of which fits at any batch."""
    readers, asked = list("bcdefghij"), 0

    def fits(edge: Any, _: Position, __: Position) -> bool:
        nonlocal asked
        asked += 1
        return bool(edge.downstream.uid != "j")

    flows = [flow("a", reader) for reader in readers]
    assert chosen({"a": at(0), **{reader: at(*range(16)) for reader in readers}}, flows, fits) is None
    assert asked < 1000


def test_batch_that_reads_many_batches_of_another_query_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(([1] * 3 + [0] * 90) * 4, (0, 999, 999))
    monkeypatch.setattr(cut, "time", chain)
    found = places(chain, 40, CheckpointConfig())
    assert not any(edge.in_flight for place in found.values() for edge in place.edges)


def test_stop_does_not_wait_until_nothing_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain([0] * 30, (0, 1, 1))
    monkeypatch.setattr(cut, "time", chain)
    for _ in range(9):
        chain.step()
    place = Cut(chain.queries, CheckpointConfig(), lambda: True).of("b", lambda: None)
    assert (chain.now, len(place.edges[0].in_flight)) == (0.0, 3)


def test_queries_that_do_not_read_each_other_are_cut_apart() -> None:
    queries: dict[str, Any] = {
        uid: SimpleNamespace(upstreams=dict.fromkeys(upstreams))
        for uid, upstreams in {"a": "", "b": "a", "c": "", "d": "", "e": "d", "f": "bd", "g": ""}.items()
    }
    assert [list(group) for group in linked_queries(queries)] == [["a", "b", "d", "e", "f"]]
    del queries["f"]
    assert sorted(list(group) for group in linked_queries(queries)) == [["a", "b"], ["d", "e"]]
