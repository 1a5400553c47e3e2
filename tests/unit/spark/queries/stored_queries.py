"""A query as a checkpoint stores it. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge, QueryDetail


def saved(uid: str, *upstreams: str) -> StateSnapshot:
    edges = tuple(Edge(upstream=upstream, path=f"/{upstream}") for upstream in upstreams)
    detail = QueryDetail(
        location=f"query/{uid}/1-abc", batch=3, begun=3, sink="parquet", path=f"/{uid}", sources={}, watermark_ms=0,
        edges=edges,
    )  # fmt: skip
    return StateSnapshot(uid=uid, kind="query", run="", query=detail)
