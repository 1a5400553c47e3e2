"""A history with streaming queries, in which each field that is stored of them is set. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge, QueryDetail
from tests.support.acknowledgements import acknowledgement
from tests.support.histories import launch, start

RUN = "scheduled__2026-11-20"
SINK = "file:///data/clean"
NEWEST_FILE = f"{SINK}/part-00000-5d1e-c000.snappy.parquet"


def at(uid: str, epoch: int) -> str:
    return location_path(uid, epoch, "n0nce")


def saved(epoch: int, batch: int, begun: int) -> Acknowledgement:
    """Return an acknowledgement of a query ``orders`` in the middle of batch ``begun``."""
    return acknowledgement(epoch, _orders(epoch, batch, begun), epoch=epoch, run=RUN)


def chained(*, apart: bool = False) -> Acknowledgement:
    """Return an acknowledgement of a query ``orders`` that has yet to read a file of ``clean``, and has read two too many. ``apart``: it
    was not started.
    """
    snapshot, file = _orders(2, 411, 411), File(name="day=1/part-00000-5d1e-c000.snappy.parquet", bytes=1944, rows=0)
    assert snapshot.query
    edge = Edge(upstream="clean", path=SINK, in_flight=(file,), ahead=2, apart=apart)
    measures = replace(snapshot.measures, alignment_s=0.75, in_flight_bytes=1944)
    return acknowledgement(
        2, replace(snapshot, measures=measures, query=replace(snapshot.query, edges=(edge,))), epoch=2, run=RUN
    )


def _orders(epoch: int, batch: int, begun: int) -> StateSnapshot:
    names = (
        "metadata",
        f"offsets/{batch}",
        f"commits/{batch}",
        f"state/0/0/{batch + 1}.snapshot",
        "state/0/_metadata/v2/0",
    )
    files = tuple(File(name=name, bytes=72, rows=0) for name in names)
    detail = QueryDetail(
        location=at("orders", epoch), batch=batch, begun=begun, sink="parquet", path=SINK, sources={"0": '{"logOffset":3}', "1": "-"},
        watermark_ms=1_763_000_000_000, newest_file=NEWEST_FILE,
    )  # fmt: skip
    return StateSnapshot(
        uid="orders", kind="query", run=RUN, file_sets=(FileSet(path=f"state/orders/{epoch}-n0nce", files=files),),
        measures=Measures(checkpoint=epoch, barrier="queries", work_s=0.5, sync_s=0.25, new_bytes=360), query=detail,
    )  # fmt: skip


def live(journal: Journal) -> None:
    """Write a checkpoint of a query, its next attempt, a way back under another name, and a query that is adopted and released."""

    def locate(uid: str, epoch: int, begun: int, committed: int, **other: Any) -> None:
        named: dict[str, Any] = {"taken_from": None, "sink": SINK} | other
        journal.append(
            c.LocateQuery(uid=uid, path=at(uid, epoch), begun=begun, committed=committed, epoch=epoch, **named)
        )

    def begin(try_number: int) -> None:
        journal.append(launch(RUN, try_number, run_after="2026-11-20T00:00:00Z"))
        journal.append(start(RUN, try_number, driver=f"dr1ver{try_number}"))

    def end(epoch: int) -> None:
        journal.append(c.EndAttempt(epoch=epoch, outcome="failed", exit_code=1))

    begin(1)
    locate("orders", 1, -1, -1)
    coordinator = Coordinator(journal, 1)
    coordinator.trigger(e.Request(token="timer 1", origin="periodic", barrier="queries"))
    coordinator.acknowledge(saved(1, 411, 412))
    coordinator.complete(1)
    end(1)
    begin(2)
    locate("orders", 2, 412, 411, taken_from=at("orders", 1))
    journal.append(c.SettleQuery(uid="orders", path=at("orders", 2), epoch=2))
    locate("clicks", 2, 7, 6, adopted="s3://lake/checkpoints/clicks")
    locate("views", 2, 7, 6, adopted="s3://lake/checkpoints/views")
    end(2)
    to = "s3://lake/checkpoints/clicks-again"
    journal.append(c.ReleaseQuery(uid="clicks", path=at("clicks", 2), to=to, begun=7, committed=6))
    journal.append(
        c.Restore(
            token=e.Token(dag="ops", run=RUN, task="restore"), base=e.Point(id=1), by="ops.restore", reason="wrong rows",
            rename={"orders": "sales", "clicks": "visits"}, rewind_queries=True, rewind_sink=True,
        )
    )  # fmt: skip
    begin(3)
    gone_back = e.GoneBack(batch=411, sink=SINK, newest_file=NEWEST_FILE)
    locate("sales", 3, 430, 429, taken_from=at("orders", 2), gone_back=gone_back)
    end(3)
