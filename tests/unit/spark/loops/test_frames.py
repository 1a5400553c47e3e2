"""What the record of a frame holds: the rows at several points of the run, the newest last."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import FrameDetail, KeyedDetail, LoopDetail, StateSnapshot
from airflow_checkpoint_provider.spark.loops.frames import Frames
from airflow_checkpoint_provider.spark.state.carrying import of_next_run
from airflow_checkpoint_provider.spark.state.states import States

NOTHING: Any = None
ROWS = [f"state/t/{number}-aa" for number in range(4)]


def loop(rows: str) -> LoopDetail:
    return LoopDetail(application="app", path="state/days/1-b", turns=1, frames={"t": rows})


def table(began: str, *, changes: bool) -> StateSnapshot:
    """Return a state with all of ``ROWS``; with ``changes``, each of them has changes of the one before."""
    return StateSnapshot(
        uid="t",
        kind="keyed" if changes else "frame",
        run="r",
        file_sets=tuple(FileSet(path=path) for path in ROWS),
        frame=FrameDetail(schemas=tuple(f"of {path}" for path in ROWS), codec="zstd", began=began),
        keyed=KeyedDetail(key=("k",), max_parallelism=128, on=dict(zip(ROWS[1:], ROWS, strict=False)))
        if changes
        else None,
    )


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("began", ROWS)
@pytest.mark.parametrize("named", ROWS)
def test_newest_rows_are_last_whatever_loops_hold(changes: bool, began: str, named: str) -> None:
    held = table(began, changes=changes)
    (record,), gone = Frames(NOTHING, NOTHING, States("r", {"t": held}), NOTHING).rewound([loop(named)])
    assert not gone
    assert record.frame
    assert record.file_sets[-1].path == began
    assert {one.path for one in record.file_sets} >= {began, named}
    assert record.frame.schemas == tuple(f"of {one.path}" for one in record.file_sets)
    carried = of_next_run(record, "next")
    assert carried
    assert [one.path for one in carried.file_sets] == (ROWS[: ROWS.index(began) + 1] if changes else [began])
