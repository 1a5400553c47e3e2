"""States as a checkpoint stores them, and what an attempt holds of them. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Measures,
    Seal,
    StageDetail,
    StateSnapshot,
    digest_of_stages,
)
from airflow_checkpoint_provider.spark.state.states import States

RUN = "day-1"


def file_set(uid: str, epoch: int) -> str:
    return f"state/{uid}/{epoch}-aa"


def stage(
    uid: str, epoch: int = 1, before: Mapping[str, str] | None = None, run: str = RUN, **values: Any
) -> StateSnapshot:
    detail = StageDetail(
        plan=uid,
        inputs="",
        python=False,
        application="app",
        schema="{}",
        codec="lz4_raw",
        earlier_stages=digest_of_stages((before or {}).values()),
        values=values,
    )
    files = (File(name="part-0", bytes=7, rows=1),)
    return StateSnapshot(
        uid=uid, kind="stage", run=run, file_sets=(FileSet(path=file_set(uid, epoch), files=files),), stage=detail
    )


def value(uid: str, held: Any, run: str = RUN) -> StateSnapshot:
    return StateSnapshot(uid=uid, kind="value", run=run, value=held, measures=Measures(checkpoint=1))


def registered(uid: str, held: Any, run: str = RUN) -> StateSnapshot:
    return StateSnapshot(uid=uid, kind="registered", run=run, value=held, measures=Measures(checkpoint=1))


def seal(*states: StateSnapshot, run: str = RUN, **run_values: Any) -> Seal:
    ack = Acknowledgement(
        inc="i", id=3, application="", epoch=1, nonce="n", run=run, states=states, run_values=run_values
    )
    return Seal(
        inc="i", job="j", scope="", item=None, id=3, kind="checkpoint", branch=0, epochs=(1,), plan=("",), applications={"": ack}
    )  # fmt: skip


def held(states: States) -> dict[str, Any]:
    """Return the states of an acknowledgement now: the file set of a stage, the JSON of a value."""
    return {state.uid: state.file_sets[0].path if state.file_sets else state.value for state in states.records("here")}
