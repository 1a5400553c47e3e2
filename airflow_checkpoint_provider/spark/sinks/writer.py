"""A sink in the hands of the script: ``write(df)``. Runs in the Spark driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.policies.arguments import Check, flag
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.queries.batch_function import refuse_inside
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.stages.arguments import UID, named, written_frame
from airflow_checkpoint_provider.spark.stages.stage import Stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _sink(name: str, value: Any) -> None:
    if isinstance(value, type):
        raise WrongUse(f"{name} is the class {value.__name__}: give an object of it, {value.__name__}(...)")
    if not isinstance(value, Sink):
        raise WrongUse(f'job.sink was given {named(value)}. Give a sink: job.sink("report", FileSink("/data/report"))')


ARGUMENTS: dict[str, Check] = {**UID, "sink": _sink, "gated": flag}


class SinkWriter:
    """A sink in the hands of the script, see ``CheckpointedJob.sink``. This class takes no rows: it is the sink of a preflight."""

    def write(self, df: DataFrame) -> None:
        """Compute the rows of ``df`` now, and hold them ready in the target. The next completed checkpoint publishes them.

        It may be called more than once; each call is a write. A retry compares the n-th write of a run with the n-th one that its restore
        point holds. Raises ``WrongUse``, ``RowsStand``, and Spark's error.
        """


class AttemptSinkWriter(SinkWriter):
    """A sink of an attempt."""

    def __init__(self, state: SinkState, sinks: Sinks, stages: Stages, checkpointer: Checkpointer) -> None:
        self._state, self._sinks, self._stages, self._checkpointer = state, sinks, stages, checkpointer

    def write(self, df: DataFrame) -> None:
        refuse_inside()
        uid = self._state.uid
        self._stages.refuse_in_part(f"sink '{uid}' was written")
        self._sinks.check_active()
        frame: Any = written_frame(uid, df, self._sinks.spark)
        self._checkpointer.stop_if_asked(f"a write to sink '{uid}'")
        with self._stages.described(uid, f"sink '{uid}'"):
            self._sinks.write(self._state, frame, self._stages.origin(frame))
