"""What a preflight says where something cannot be read, and what its job does. Runs anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import pytest

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    KindChanged,
    SourceUnavailable,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
    WrongUse,
)
from airflow_checkpoint_provider.location.files import NOTHING, Location
from airflow_checkpoint_provider.protocol.metadata import REGISTERED, VALUE, StateSnapshot
from airflow_checkpoint_provider.protocol.preflight import QueryFit
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark import InitializationContext, Query
from airflow_checkpoint_provider.spark.preflight import ComparedQuery, PreflightRun
from airflow_checkpoint_provider.spark.queries import preflight
from airflow_checkpoint_provider.spark.queries.preflight import Preflight
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sources import edges
from airflow_checkpoint_provider.spark.queries.sources.reading import Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import Source
from airflow_checkpoint_provider.storage.memory import MemoryStore

SAVED = QueryDetail(
    location="query/q/1-abc", batch=3, begun=3, sink="parquet", path="/out", sources={}, watermark_ms=0
)  # fmt: skip
MOVED = "it writes to /new, and has written to /out"


class PlayedSink(StreamSink):
    """A sink of files in a folder."""

    def __init__(self, folder: str) -> None:
        target: Any = SimpleNamespace(format="parquet")
        super().__init__("q", target)
        self._folder = folder

    @property
    def path(self) -> str:
        return self._folder


class Sources:
    """The sources of a query, whose location or brokers do not answer."""

    def __init__(self, error: CheckpointError) -> None:
        self._error = error

    def losses(self, *_: object) -> Iterator[NoReturn]:
        yield from ()
        raise self._error


def compared(monkeypatch: pytest.MonkeyPatch, of_sink: object = None, of_source: object = None) -> QueryFit:
    """Compare a query that writes to another path, and whose sink or source raises an error."""

    def sink(*_: object) -> StreamSink:
        if isinstance(of_sink, CheckpointError):
            raise of_sink
        return PlayedSink("/new")

    monkeypatch.setattr(preflight, "examine", lambda *_: None)
    monkeypatch.setattr(preflight, "path_sources", lambda *_: [])
    monkeypatch.setattr(preflight, "sink_of", sink)
    monkeypatch.setattr(preflight, "SourceRows", lambda *_: Sources(of_source))  # type: ignore[arg-type]
    nobody: Any = None
    return Preflight(nobody, Location(MemoryStore(), "copies")).compare("q", nobody, SAVED, rescale=False)


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreDenied, StoreMisconfigured, CheckpointError])
def test_query_whose_table_or_files_do_not_answer_is_unknown(
    monkeypatch: pytest.MonkeyPatch, kind: type[CheckpointError]
) -> None:
    """A catalog that does not answer is an error without a code of its own."""
    assert compared(monkeypatch, kind("no answer")) == QueryFit("q", unknown=f"no answer [{kind.code}]")
    assert compared(monkeypatch, of_source=kind("no answer")) == QueryFit(
        "q", (MOVED,), unknown=f"no answer [{kind.code}]"
    )


def test_query_that_is_refused_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(monkeypatch, WrongUse("no such table")) == QueryFit("q", ("no such table",))


def test_query_whose_brokers_do_not_answer_is_unknown_and_compared_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preflight, "_of_location", lambda *_, **__: ["another key"])
    found = compared(monkeypatch, of_source=SourceUnavailable("no answer"))
    assert found == QueryFit("q", (MOVED, "another key"), unknown="no answer [CKP406]")


@pytest.mark.parametrize(
    ("reads", "started", "why"),
    [
        ("/clean", ["clean"], None),
        ("/clean", [], "query 'totals' is to read what 'clean' writes, which is not started. Start 'clean' first"),
        (
            "/old",
            ["clean"],
            "query 'totals' reads /old, and 'clean' writes to /clean. Read that path, or leave after= out",
        ),
    ],
)
def test_query_whose_after_would_be_refused_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, reads: str, started: list[str], why: str | None
) -> None:
    """Also a query that begins."""
    monkeypatch.setattr(preflight, "examine", lambda *_: None)
    monkeypatch.setattr(preflight, "path_sources", lambda *_: [])
    monkeypatch.setattr(preflight, "sink_of", lambda _, uid, *__: PlayedSink(f"/{uid}"))
    monkeypatch.setattr(edges, "path_sources", lambda *_: [Source(0, 0, reads)])
    nobody: Any = None
    compared = Preflight(nobody, Location(MemoryStore(), "copies"))
    for uid in started:
        assert not compared.compare(uid, nobody, None).differences
    found = compared.compare("totals", nobody, None, after=["clean"])
    assert found.differences == ((why,) if why else ())


class Lacking:
    """Sources that lack rows. Spark leaves some of them out, because an option says so."""

    readings: ClassVar[list[Reading]] = []

    def losses(self, reading: Reading) -> Iterator[Loss]:
        self.readings.append(reading)
        yield Loss("topic a", ["0"], "")
        yield Loss("topic b", ["1"], "", allowed="failOnDataLoss is false")

    def notes(self, _: object) -> Iterator[str]:
        yield "topic c could not be asked"


def nothing_done(monkeypatch: pytest.MonkeyPatch, sources: Sequence[Source] = ()) -> Preflight:
    """Return a preflight whose queries write to ``/out`` and read ``sources``. Spark is not asked."""
    monkeypatch.setattr(preflight, "examine", lambda *_: None)
    monkeypatch.setattr(preflight, "path_sources", lambda *_: sources)
    monkeypatch.setattr(preflight, "sink_of", lambda *_: PlayedSink("/out"))
    monkeypatch.setattr(preflight, "SourceRows", lambda *_: Lacking())
    monkeypatch.setattr(Preflight, "_of_location", lambda *_, **__: [])
    return Preflight(NOBODY, Location(MemoryStore(), "copies"))


NOBODY: Any = None


def test_rows_that_sources_lack_are_differences_unless_spark_may_leave_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = nothing_done(monkeypatch).compare("q", NOBODY, SAVED)
    assert found.differences == ("topic a does not have all rows since batch 3: 0",)
    assert found.note == (
        "topic b does not have all rows since batch 3: 1. Spark skips them, because failOnDataLoss is false;"
        " topic c could not be asked"
    )
    assert Lacking.readings[-1].restored


def test_query_that_has_committed_no_batch_fits_without_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nothing_done(monkeypatch).compare("q", NOBODY, replace(SAVED, batch=NOTHING)) == QueryFit("q")


def test_query_that_reads_what_it_writes_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    (why,) = nothing_done(monkeypatch, [Source(0, 0, "/out")]).compare("q", NOBODY, None).differences
    assert why.startswith("query 'q' reads /out and writes to it.")


def test_query_that_writes_where_another_one_writes_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = nothing_done(monkeypatch)
    assert not compared.compare("first", NOBODY, None).differences
    (why,) = compared.compare("second", NOBODY, None).differences
    assert why.startswith("query 'second' would write to /out, where query 'first' of this job writes.")


# -- the job of a preflight ------------------------------------------------------------------------------------------------


def test_query_that_the_script_gets_has_the_same_public_methods() -> None:
    assert public(ComparedQuery) == public(Query)


def public(kind: type) -> dict[str, object]:
    """Return the parameters of each public method, and each public property."""
    members = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        name: inspect.signature(member).parameters if inspect.isfunction(member) else type(member)
        for name, member in members.items()
    }


def test_registered_object_gets_its_state_in_the_checkpoint_at_once() -> None:
    saved = StateSnapshot(uid="position", kind=REGISTERED, run="r", value={"at": 7})
    job = PreflightRun.__new__(PreflightRun)
    job._saved = {"position": saved, "rows": replace(saved, uid="rows", kind=VALUE)}
    job._seal = SimpleNamespace(id=3)  # type: ignore[assignment]
    got: list[InitializationContext] = []
    played: Any = SimpleNamespace(initialize_state=got.append, snapshot_state=lambda ctx: None)
    job.register("position", played)
    job.register("new", played)
    assert got == [
        InitializationContext("position", {"at": 7}, restored=True, checkpoint_id=3),
        InitializationContext("new", None, restored=True, checkpoint_id=3),
    ]
    with pytest.raises(KindChanged):
        job.register("rows", played)
    with pytest.raises(WrongUse, match="has no method snapshot_state"):
        job.register("other", SimpleNamespace(initialize_state=got.append))
