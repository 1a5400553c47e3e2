"""Carry the states that last over to the next run. Pure. Runs in the Spark driver."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.metadata import FRAME, OF_RUN, ONCE, LoopDetail, StateSnapshot


def of_next_run(state: StateSnapshot, run: str) -> StateSnapshot | None:
    """Return a state of another run as ``run`` begins with it; None if ``run`` does not see it.

    A frame begins with its newest rows. Of a history's items, only the list counts: the turns in which they were done belong to their run.
    """
    if state.kind in OF_RUN:
        return None
    if state.frame:
        newest, schema = state.file_sets[-1:], state.frame.schemas[-1:]
        return replace(
            state, run=run, file_sets=newest, frame=replace(state.frame, schemas=schema, began=newest[0].identity)
        )
    if state.kind == ONCE and state.loop:
        return replace(state, run=run, loop=before_the_run(state.loop, len(state.value)))
    return state


def before_the_run(loop: LoopDetail, done: int) -> LoopDetail:
    """Return the detail of a history's items as the run has begun with it: earlier runs have done ``done`` of them."""
    return LoopDetail(application=loop.application, path=loop.path, began=done)


def began_with(state: StateSnapshot) -> bool:
    """Return whether the run has begun with a frame, or with done items of the history."""
    return bool(state.frame and state.frame.began) or bool(state.kind == ONCE and state.loop and state.loop.began)


LASTING = (FRAME, ONCE)
