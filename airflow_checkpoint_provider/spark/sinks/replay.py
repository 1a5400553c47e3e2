"""Decide whether a write that a checkpoint holds is the write that the script asks for now. Pure. Runs in the Spark driver.

A retry runs the script again from its top. A write that the restore point holds is not done again, by the rules by which the rows of a
stage are reused: same application and same plan, or a plan that shows all.
"""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.transactions import Origin
from airflow_checkpoint_provider.spark.stages.captured import changed

OPAQUE = "its plan calls Python or other code, or holds rows of the driver"
OTHER_OPTIONS = "the options of the sink changed"
REBUILT = "what it is built on was computed again"


def difference(stored: Origin, now: Origin) -> str:
    """Return why the rows of the two writes may differ; empty if they are the same rows."""
    if stored.options and now.options != stored.options:
        return OTHER_OPTIONS
    new_application = now.application != stored.application
    if now.python and now.earlier_stages != stored.earlier_stages:
        return f"{OPAQUE}, and {REBUILT}"
    if now.plan != stored.plan:
        names = ", ".join(f"`{name}`" for name in changed(stored.captured, now.captured))
        values = f": the value of {names} in a Python function" if names else ""
        return REBUILT if now.inputs != stored.inputs else f"its plan changed{values}"
    if now.python and new_application:
        return f"the application changed and {OPAQUE}, so equal rows cannot be proved"
    if now.listed != stored.listed and (new_application or now.generation != stored.generation):
        return "its inputs moved, and " + ("the application changed" if new_application else "the task was cleared")
    return ""
