"""The work of stages: stored in a restore point, and really reused by an attempt. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.metadata import OF_RUN, ONCE, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.units import brief, duration, some


def own_stages(states: Iterable[StateEntry], run: str) -> list[StateEntry]:
    """Return the stages of a run, and its loops, in the order in which they were computed. Another run computes its stages anew, and of a
    history's items only its own count.
    """
    own = [state for state in states if state.run == run]
    work = [state for state in own if state.kind in OF_RUN or (state.kind == ONCE and state.measures.work_s)]
    return sorted(work, key=lambda stage: (stage.measures.checkpoint, stage.uid))


def written_once(stages: Iterable[StateEntry]) -> int:
    """Return the bytes that stages wrote. Copies of their rows are made beside the script, and do not count."""
    return sum({_identity(stage): stage.measures.new_bytes for stage in stages}.values())


def reused_stages(state: State, attempt: AttemptRecord, run: str) -> list[StateEntry] | None:
    """Return the stages that this attempt did not compute again, by its newest checkpoint; None if that is not known.

    An attempt that neither finished nor completed a checkpoint has reused nothing for good: the next attempt begins where this one began.
    """
    point = attempt.restore_point
    if point is None or point.id is None:
        return []
    checkpoints = [checkpoint for checkpoint in state.checkpoints_of(attempt.epoch) if checkpoint.completed_at]
    if not checkpoints and attempt.outcome != "finished":
        return None
    newest = checkpoints[-1] if checkpoints else state.checkpoint(point.id)
    restored = state.checkpoint(point.id)
    # Rows that were copied from a savepoint are new in this history, but not their work.
    copied = set(map(_identity, restored.states if restored else ()))
    used = [stage for stage in own_stages(newest.states if newest else (), run) if not stage.unused]
    whole = (stage.measures.checkpoint <= point.id or _identity(stage) in copied for stage in used)
    return [
        kept
        for stage, all_of_it in zip(used, whole, strict=True)
        if (kept := stage if all_of_it else _parts_kept(stage))
    ]


def _parts_kept(stage: StateEntry) -> StateEntry | None:
    """Return a stage with the work of those of its parts that were not computed again; None if there are none."""
    if stage.parts is None or not stage.parts.kept_s:
        return None
    return replace(stage, measures=replace(stage.measures, work_s=stage.parts.kept_s))


def in_words(stages: Iterable[StateEntry]) -> str:
    """Return the work of stages and its parts: ``2 h 52 min of work (clean 1 h 12, weather 1 h 40)``."""
    parts = some([f"{stage.uid} {brief(stage.measures.work_s)}" for stage in stages])
    return f"{duration(seconds(stages))} of work ({parts})"


def seconds(stages: Iterable[StateEntry]) -> float:
    """Return the seconds of work that stages took."""
    return sum(stage.measures.work_s for stage in stages)


def _identity(stage: StateEntry) -> tuple[str, float, int]:
    """Return the fields that are equal for the rows of a stage and for their copies."""
    return stage.uid, stage.measures.work_s, stage.rows
