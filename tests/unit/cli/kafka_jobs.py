"""A job whose query reads Kafka: its checkpoints, and what its driver says of the topics. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from tests.support.acknowledgements import acknowledgement
from tests.support.acting import Job

AT = "2026-11-20T14:05:00Z"


def save(
    job: Job, *sources: str, uid: str = "clicks", sink: str = "kafka", path: str = "", newest_file: str | None = None
) -> None:
    """Complete a checkpoint of a query that reads on at the offsets ``sources``."""
    number = job.state.next_id
    job.coordinator.trigger(Request(token=f"barrier {number}"))
    detail = QueryDetail(
        location="query/clicks/1-abc", batch=number, begun=number, sink=sink, path=path,
        sources={str(source): offsets for source, offsets in enumerate(sources)}, watermark_ms=0, newest_file=newest_file,
    )  # fmt: skip
    clicks = StateSnapshot(uid=uid, kind="query", run="", query=detail)
    job.coordinator.acknowledge(acknowledgement(number, clicks, epoch=job.state.last_epoch, inc=job.state.incarnation))
    job.coordinator.complete(number)


def beat(job: Job, *earliest: str, loss_allowed: tuple[str, ...] = ()) -> None:
    """Let a driver say at which offsets its sources begin."""
    offsets = {str(source): text for source, text in enumerate(earliest)}
    clicks = EarliestOffsets(uid="clicks", at=AT, sources=offsets, loss_allowed=loss_allowed)
    Heart(job.store, job.keys.attempt_beat(1), Beat(epoch=1, earliest=(clicks,))).pulse()
