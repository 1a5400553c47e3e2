"""What a preflight says where something cannot be read. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from airflow_checkpoint_provider.coordinator.query_location import Location
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    SourceUnavailable,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
    WrongUse,
)
from airflow_checkpoint_provider.protocol.metadata import QueryDetail
from airflow_checkpoint_provider.protocol.preflight import QueryFit
from airflow_checkpoint_provider.spark.queries import preflight
from airflow_checkpoint_provider.spark.queries.preflight import Preflight
from airflow_checkpoint_provider.storage.memory import MemoryStore

SAVED = QueryDetail(
    location="query/q/1-abc", batch=3, begun=3, sink="parquet", path="/out", sources={}, watermark_ms=0
)  # fmt: skip
MOVED = "it writes to /new, and has written to /out"


class Sources:
    """The Kafka sources of a query, whose location or brokers do not answer."""

    def __init__(self, error: CheckpointError) -> None:
        self._error = error

    def losses(self, *_: object) -> Iterator[NoReturn]:
        yield from ()
        raise self._error


def compared(monkeypatch: pytest.MonkeyPatch, of_sink: object = None, of_source: object = None) -> QueryFit:
    """Compare a query that writes to another path, and whose sink or source raises an error."""

    def sink(*_: object) -> object:
        if isinstance(of_sink, CheckpointError):
            raise of_sink
        return SimpleNamespace(path="/new")

    monkeypatch.setattr(preflight, "examine", lambda *_: SimpleNamespace(format="parquet"))
    monkeypatch.setattr(preflight, "sink_of", sink)
    monkeypatch.setattr(preflight, "KafkaSources", lambda *_: Sources(of_source))  # type: ignore[arg-type]
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
