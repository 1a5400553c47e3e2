"""Decide whether a loop goes on after its finished turns, or begins anew. Pure. Runs in the Spark driver.

Finished turns are state: they are kept when the application changes, as the state of a query is. But turns that were built on other rows
than the script has now are worth nothing, as a stage that was built on them is.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest, changed_input


def why_anew(
    loop: LoopDetail, request: StageRequest, writes: Mapping[str, int], broken_off: str | None, overtaken: str = ""
) -> str:
    """Return why the finished turns of a loop are run again; empty if they are kept.

    ``writes`` are the writes to sinks before the loop. If there were others, nobody knows which later write belongs to which turn.
    ``broken_off`` is a loop before it that was left by ``break`` after changes. No barrier has stored them, so nothing can be compared:
    only an unchanged application comes to the same rows and values again.
    ``overtaken`` is a sink in which a write before the loop takes the place of what its turns have written.
    """
    if why := changed_input(loop, request):
        return why
    before = broken_off or loop.broken_off
    if before and loop.application != request.application:
        return (
            f"loop '{before}' before it ends by break, so the changed script may come here with other rows and values"
        )
    if overtaken:
        return (
            f"a write to sink '{overtaken}' before it is done again, and takes the place of what its turns have written"
        )
    counts = (
        (uid, writes.get(uid, 0), loop.writes_before.get(uid, 0)) for uid in sorted({*writes, *loop.writes_before})
    )
    for uid, now, stored in counts:
        if now != stored:
            return f"the script now writes {now} times to sink '{uid}' before it, and wrote {stored} times"
    return ""
