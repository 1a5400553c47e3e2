"""Carry the states that last over to the next run. Pure. Runs in the Spark driver."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.metadata import (
    FRAME,
    KEYED,
    OF_RUN,
    ONCE,
    FrameDetail,
    LoopDetail,
    StateSnapshot,
    chain,
)


def of_next_run(state: StateSnapshot, run: str) -> StateSnapshot | None:
    """Return a state of another run as ``run`` begins with it; None if ``run`` does not see it.

    A frame begins with its newest rows. Of a history's items, only the list counts: the turns in which they were done belong to their run.
    """
    if state.kind in OF_RUN:
        return None
    if state.frame:
        return _newest(state, state.frame, run)
    if state.kind == ONCE and not state.value:  # all items that the other run had done are open again
        return None
    if state.kind == ONCE and state.loop:
        measures = replace(state.measures, work_s=0.0)  # a retry counts the work of its own run
        return replace(state, run=run, measures=measures, loop=before_the_run(state.loop, len(state.value)))
    return state


def of_other_history(state: StateSnapshot, run: str) -> StateSnapshot | None:
    """Return a state of another history as ``run`` begins with it; None if ``run`` does not see it.

    Runs of two histories may have one name. So what waits in a sink is marked for all later attempts: no write of it is one of ``run``.
    What is committed there is of no use here, as it is to a next run.
    """
    carried = of_next_run(state, run)
    if carried is None or carried.sink is None:
        return carried
    waiting = (replace(made, forked=True) for made in carried.sink.transactions if not made.committed)
    return replace(carried, run="", sink=replace(carried.sink, transactions=tuple(waiting)))


def _newest(state: StateSnapshot, frame: FrameDetail, run: str) -> StateSnapshot:
    """Return a frame with its newest rows alone."""
    on = state.keyed.on if state.keyed else {}
    newest = chain(on, state.file_sets[-1].identity)
    kept = [(one, schema) for one, schema in zip(state.file_sets, frame.schemas, strict=True) if one.identity in newest]
    return replace(
        state,
        run=run,
        file_sets=tuple(one for one, _ in kept),
        frame=replace(frame, schemas=tuple(schema for _, schema in kept), began=newest[-1]),
        keyed=state.keyed and replace(state.keyed, on={one: before for one, before in on.items() if one in newest}),
    )


def before_the_run(loop: LoopDetail, done: int) -> LoopDetail:
    """Return the detail of a history's items as the run has begun with it: earlier runs have done ``done`` of them.

    What their turns have opened stays in use, though no turn opens it again.
    """
    return LoopDetail(application=loop.application, path=loop.path, began=done, opened=loop.opened, used=loop.used)


def began_with(state: StateSnapshot) -> bool:
    """Return whether the run has begun with a frame, or with done items of the history."""
    return bool(state.frame and state.frame.began) or bool(state.kind == ONCE and state.loop and state.loop.began)


LASTING = (FRAME, KEYED, ONCE)
