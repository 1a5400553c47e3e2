"""Decide whether the stored rows of a stage are the rows that the script asks for. Pure. Runs in the Spark driver.

Same run, same application and same plan: the rows are reused. Only for a changed application more is compared. A plan's text does not show
the body of a function, Python code or rows of the driver. Such a stage is reused only if every stage before it is the same. The author's
``version`` decides about the application, never about an input: if paths or rows have changed, the stage is computed again. The files and
versions of tables that Spark has listed are compared last, as ``inputs`` of the stage says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.metadata import (
    STAGE,
    FilesDetail,
    Provenance,
    StageDetail,
    StateSnapshot,
    digest_of_stages,
    kind_in_words,
)
from airflow_checkpoint_provider.spark.stages.draws import SharedDraws
from airflow_checkpoint_provider.spark.stages.partitions import changed_partitions
from airflow_checkpoint_provider.spark.stages.plan import Plan

AUTO, COMPARE, KEEP = "auto", "compare", "keep"
INPUTS = (AUTO, COMPARE, KEEP)
"""The values of ``inputs=``: how a stage treats inputs that moved."""

MOVED_HINT = (
    ". Its inputs moved, and the paths of a pattern and a schema that Spark infers are part of the plan: read the folder,"
    " and give the schema"
)
TIME_HINT = ". If it is a time that changes in each try, use job.started_at"


@dataclass(frozen=True)
class Verdict:
    """The decision, and its reason as the log line ends with it. ``moved`` says which inputs moved though the rows are reused."""

    reuse: bool
    why: str = ""
    moved: str = ""


@dataclass(frozen=True)
class StageRequest:
    """A stage as the script asks for it: digest of the application, the author's ``version`` and ``inputs``, the stages before it.

    ``snapshots`` are the states of the attempt: those of the restore point, and of the stages computed since. ``generation`` is
    another number after a person has cleared the task.
    """

    application: str
    version: str | None
    function: bool
    handed_out: dict[str, str]
    uid: str
    snapshots: Mapping[str, StateSnapshot]
    inputs: str = AUTO
    generation: int = 0

    @property
    def earlier_stages(self) -> str:
        """Return a digest of the stages before it."""
        return digest_of_stages(self.handed_out.values())


def reuse_without_plan(prior: StageDetail, request: StageRequest) -> Verdict:
    """Decide for a function before it is called. If the verdict is no, call it and compare its plan."""
    if changed_input(prior, request) or request.version != prior.version or request.inputs == COMPARE:
        return Verdict(False)
    return Verdict(prior.application == request.application)


def decide_files(prior: FilesDetail, request: StageRequest) -> Verdict:
    """Decide for files that a function of the script has written. There is no plan to compare: nobody sees what the function does."""
    if changed_stage := changed_input(prior, request):
        return Verdict(False, changed_stage)
    if request.version != prior.version:
        return Verdict(False, f"its version changed: {prior.version!r} → {request.version!r}")
    if request.application == prior.application:
        return Verdict(True)
    if request.version is not None:
        return Verdict(True, f"application changed, version={request.version!r} is the same")
    return Verdict(
        False, 'the application changed, so equal files cannot be proved. To keep them next time, set version="1"'
    )


def decide_reuse(
    prior: StageDetail, request: StageRequest, plan: Plan, difference: Callable[[], str], *, moved: bool = False
) -> Verdict:
    """Decide for a plan. ``difference`` returns the change since the stored plan in a line; it reads a file, so it is called last.

    :param moved: whether the inputs moved, too.
    """
    changed_stage = changed_input(prior, request)
    opaque = plan.python or plan.local_rows or (request.version is not None and not request.function)
    if changed_stage and opaque:
        return Verdict(False, f"{_why_opaque(plan)}, and {changed_stage}")
    if request.version != prior.version:
        return Verdict(False, f"its version changed: {prior.version!r} → {request.version!r}")
    new_application = request.application != prior.application
    if plan.digest == prior.plan:
        return _same_plan(new_application, request, plan)
    if new_application and request.version is not None and not changed_stage and plan.read == prior.inputs:
        return Verdict(True, f"application changed, version={request.version!r} is the same")
    if plan.drawn_columns:
        column = plan.drawn_columns[0]
        return Verdict(
            False,
            f"the name of its column `{column}` is drawn anew by each driver. Give it a name: alias(), setOutputCol()",
        )
    hint = "" if new_application or changed_stage else MOVED_HINT * moved + TIME_HINT
    return Verdict(False, f"its plan changed: {difference()}{hint}")


def keep_together(prior: StageDetail, plan: Plan, shared: SharedDraws, verdict: Verdict) -> Verdict:
    """Decide for rows that would be reused whether they fit to those of the other stages: by partitions and drawn values."""
    if not verdict.reuse:
        return verdict
    if why := changed_partitions(prior.partitions, plan.partitions):
        return Verdict(False, why)
    if other := shared.conflict(plan.draws, stored_draws(prior, plan, verdict)):
        return Verdict(False, f"it shares values that Spark draws with stage '{other}', which was computed again")
    return verdict


def stored_draws(prior: StageDetail, plan: Plan, verdict: Verdict) -> tuple[int, ...] | None:
    """Return the draws of stored rows in the order of the plan's; None if the rows are of another plan or of other inputs."""
    return prior.draws if plan.digest == prior.plan and not verdict.moved else None


def decide_inputs(
    prior: StageDetail, request: StageRequest, listed: str, verdict: Verdict, moved: Callable[[], str]
) -> Verdict:
    """Decide for a plan that would be reused. ``listed`` is the digest of Spark's listing now, ``moved`` says which inputs moved.

    An automatic retry of the same application keeps the rows: a folder into which other programs write grows all the time. But drawn and
    numbered values would not fit to those of a stage that reads the current files.
    """
    if not verdict.reuse or listed == prior.listed:
        return verdict
    if request.inputs == KEEP:
        return replace(verdict, moved=f'{moved()}. inputs="keep" is set')
    if request.inputs == COMPARE:
        return Verdict(False, f"its inputs moved: {moved()}")
    why = _why_compared(prior, request)
    if not why:
        return replace(verdict, moved=f'{moved()}. To compute it again when its inputs move, write inputs="compare"')
    return Verdict(False, f'{why}, and its inputs moved: {moved()}. To keep its rows, write inputs="keep"')


def _why_compared(prior: StageDetail, request: StageRequest) -> str:
    """Return why the rows of moved inputs are computed again by themselves; empty for an automatic retry."""
    if request.application != prior.application:
        return "the application changed"
    if request.generation != prior.generation:
        return "the task was cleared"
    return f"its rows depend on partitions ({prior.partitions['function']})" if prior.partitions else ""


def _same_plan(new_application: bool, request: StageRequest, plan: Plan) -> Verdict:
    if not new_application:
        return Verdict(True)
    if request.version is not None:
        return Verdict(True, f"application changed, version={request.version!r} is the same")
    if plan.python or plan.local_rows:
        why = f"the application changed and {_why_opaque(plan)}, so equal rows cannot be proved"
        return Verdict(False, f'{why}. To keep them next time, set version="1"')
    return Verdict(True, "application changed, this stage did not")


def _why_opaque(plan: Plan) -> str:
    """Return why the plan's text alone proves nothing."""
    if plan.python:
        return "its plan calls Python or other code"
    return "its plan holds rows of the driver" if plan.local_rows else "version= was given"


def changed_input(prior: Provenance, request: StageRequest) -> str:
    """Return which stage before this one is not the same as for the stored rows; empty if all are the same."""
    if prior.earlier_stages == request.earlier_stages:
        return ""
    came_before, written = _came_before(prior, request.snapshots), _epoch(request.snapshots[request.uid])
    for uid in came_before:
        if uid not in request.handed_out:
            return f"{_named(uid, request)} no longer comes before it"
        if file_set_epoch(request.handed_out[uid]) > written:
            return f"{_named(uid, request)} before it was computed again"
    known = digest_of_stages(request.handed_out[uid] for uid in came_before) == prior.earlier_stages
    added = next((uid for uid in request.handed_out if uid not in came_before), None) if known else None
    return f"{_named(added, request)} now comes before it" if added else "other stages came before it"


def _named(uid: str, request: StageRequest) -> str:
    """Return a stage or a folder as messages call it."""
    snapshot = request.snapshots.get(uid)
    return f"{kind_in_words(snapshot.kind) if snapshot else STAGE} '{uid}'"


def _came_before(prior: Provenance, snapshots: Mapping[str, StateSnapshot]) -> list[str]:
    """Return the uids of the stages that came before a stored one, in the script's order. Each stage names the one before it.

    A stage that was reused after other stages than at first names an older one, so the list may lack some of them.
    """
    found: dict[str, None] = {}
    before = prior.stage_before
    while before is not None and before not in found:
        found[before] = None
        snapshot = snapshots.get(before)
        before = snapshot.provenance.stage_before if snapshot and snapshot.provenance else None
    return list(reversed(found))


def _epoch(stage: StateSnapshot) -> int:
    """Return the epoch of the attempt that wrote the rows of a stage, the last of them if it was cut into parts."""
    return file_set_epoch(stage.identity)
