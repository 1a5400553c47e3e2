"""Decide whether a loop goes on after its finished turns, or begins anew. Pure. Runs in the Spark driver.

Finished turns are state: they are kept when the application changes, as the state of a query is. But turns that were built on other rows
than the script has now are worth nothing, as a stage that was built on them is.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest, changed_input


def why_anew(loop: LoopDetail, request: StageRequest, writes: Mapping[str, int]) -> str:
    """Return why the finished turns of a loop are run again; empty if they are kept.

    ``writes`` are the writes to sinks before the loop. If there were others, nobody knows which later write belongs to which turn.
    """
    if why := changed_input(loop, request):
        return why
    other = [
        uid for uid in sorted({*writes, *loop.writes_before}) if writes.get(uid, 0) != loop.writes_before.get(uid, 0)
    ]
    if not other:
        return ""
    uid = other[0]
    return f"the script now writes {writes.get(uid, 0)} times to sink '{uid}' before it, and wrote {loop.writes_before.get(uid, 0)} times"
