"""May the stored rows of a stage stand for this plan? Pure. Runs in the Spark driver.

Same run, same application, same plan: reused. Only a changed application is looked at closer. What no plan text shows, a
function's body, Python code or rows of the driver, is reused unseen only where everything handed out before it is the same.
The author's ``version`` speaks for the application, never for an input: paths and rows that moved are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.metadata import StageDetail
from airflow_checkpoint_provider.spark.stages.plan import Plan


@dataclass(frozen=True)
class Verdict:
    """``why`` is the rest of the log's line."""

    reuse: bool
    why: str = ""


@dataclass(frozen=True)
class Now:
    """What the script asks for: the application's digest, the author's ``version``, and what was handed out so far."""

    application: str
    version: str | None
    function: bool
    handed_out: Mapping[str, str]


def reuse_without_plan(prior: StageDetail, now: Now) -> Verdict:
    """For a function, before it is called; a refusal means: build it and compare."""
    if moved_input(prior, now) or now.version != prior.version:
        return Verdict(False)
    return Verdict(prior.application == now.application)


def decide_reuse(prior: StageDetail, now: Now, plan: Plan, difference: Callable[[], str]) -> Verdict:
    """For a plan. ``difference`` says in a line what moved since the stored one; it reads a file, so it is asked last."""
    moved = moved_input(prior, now)
    unseen = plan.python or plan.local_rows or (now.version is not None and not now.function)
    if moved and unseen:
        return Verdict(False, f"{_what(plan)} and {moved}")
    if now.version != prior.version:
        return Verdict(False, f"its version moved: {prior.version!r} → {now.version!r}")
    changed = now.application != prior.application
    if plan.digest == prior.plan:
        return _same_plan(changed, now, plan)
    if changed and now.version is not None and not moved and plan.read == prior.inputs:
        return Verdict(True, f"application changed, version={now.version!r} is the same")
    hint = "" if changed or moved else "; a literal that moves from try to try? use job.started_at"
    return Verdict(False, f"its plan moved: {difference()}{hint}")


def _same_plan(changed: bool, now: Now, plan: Plan) -> Verdict:
    if not changed:
        return Verdict(True)
    if now.version is not None:
        return Verdict(True, f"application changed, version={now.version!r} is the same")
    if plan.python or plan.local_rows:
        why = f"the application changed and {_what(plan)}; cannot be proved equal"
        return Verdict(False, f'{why}. Keep it next time: version="1"')
    return Verdict(True, "application changed, this stage did not")


def _what(plan: Plan) -> str:
    """Why the plan's text alone proves nothing."""
    if plan.python:
        return "its plan calls Python"
    return "its plan holds rows of the driver" if plan.local_rows else "version= was given"


def moved_input(prior: StageDetail, now: Now) -> str:
    """Which stage handed out earlier is not what it was for the stored rows; empty if all are."""
    for uid, file_set in prior.before.items():
        if uid not in now.handed_out:
            return f"stage '{uid}' no longer comes before it"
        if now.handed_out[uid] != file_set:
            return f"stage '{uid}' before it was computed anew"
    added = next((uid for uid in now.handed_out if uid not in prior.before), None)
    return f"stage '{added}' now comes before it" if added else ""
