"""Whether a job makes checkpoints: how many it has completed. Runs in Airflow (worker)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_checkpoint_provider.coordinator.savepoint import open_savepoint
from airflow_checkpoint_provider.errors import InvalidConfig, RunFinished
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.watched import Followed
from airflow_checkpoint_provider.operators.of_job import OfJob
from airflow_checkpoint_provider.protocol.keys import Pointer, checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from airflow_checkpoint_provider.sensors.checkpoint import JournalSensor
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.triggers.checkpoint import CompletedTrigger


class CheckpointCompletedSensor(OfJob, JournalSensor):
    """Waits until a job has completed ``count`` checkpoints: a sign of health, after an upgrade for example.

    Savepoints do not count, nor what was completed before a restore. The XCom is the newest one that counted, as a
    trigger returns it.

    :param job: the ``CheckpointedSparkSubmitOperator`` of the same DAG, or a job id: the history that its runs share.
    :param after: count those with a higher id than this one: the output of a task that triggered a checkpoint or a
        savepoint, a pointer, or an id. By default those that the job's newest launch has made. (templated)
    :param count: how many.
    :param checkpoint_conn_id: as of the other tasks about a job.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks, each of which costs one request to the storage.
    """

    template_fields: Sequence[str] = (*OfJob.template_fields, "after")

    def __init__(self, *, after: Any = None, count: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= KEPT_RECORDS:
            raise InvalidConfig(f"count={count!r}: write a whole number from 1 to {KEPT_RECORDS}")
        self.after, self.count = after, count
        self._followed: Followed | None = None  # kept between pokes, so that one costs a GET
        self._counted, self._unheard = 0, ""

    def _look(self, context: Any) -> dict[str, Any] | None:
        ti = context["ti"]
        followed = self._following(ti)
        completed = followed.completed()
        self._counted = len(completed)
        if self._counted < self.count:
            self._say_unheard_of(followed, ti)
            if followed.finished(run := self._run(ti)):
                raise RunFinished(
                    f"{self._missed()}: run {run} has finished, and makes no more. Clear it, or lower count="
                )
            return None
        for one in completed[: self.count]:
            self.log.info("%s", messages.checkpoint_line(one))
        return followed.reference(completed[-1])

    def _trigger(self, context: Any, **arguments: Any) -> CompletedTrigger:
        followed = self._following(context["ti"])
        history = followed.history
        return CompletedTrigger(
            job=history.job, key=history.run, item=history.item, run_key=self._run(context["ti"]), after=followed.after,
            count=self.count, **arguments,
        )  # fmt: skip

    def _run(self, ti: Any) -> str | None:
        """The run that must still go on: that of a task of this DAG. After a clear it may be about to start again."""
        return ti.run_id if self.job_task_id and not self.cleared(ti) else None

    def _say_unheard_of(self, followed: Followed, ti: Any) -> None:
        """Once. It may be about to start, too."""
        if followed.coordinator.state.n < 0 and not self._unheard:
            self._unheard = self.unheard_of(followed.coordinator.store, ti)
            self.log.warning("%s; waiting for it", self._unheard)

    def _missed(self) -> str:
        job = f"job {self._followed.history.job!r}" if self._followed else "the job"
        unheard = f" ({self._unheard})" if self._unheard and not self._counted else ""
        return f"{job}{unheard} has completed {self._counted} of {self.count} checkpoints"

    def _following(self, ti: Any) -> Followed:
        if self._followed is None:
            owner = f"{ti.dag_id}.{ti.task_id}"
            self._followed = Followed(self.history(ti), self._after(), self.checkpoint_conn_id, owner)
        return self._followed

    def _after(self) -> int | None:
        """The id; of a savepoint that was given by its directory it stands there."""
        given = self.after.get("id") if isinstance(self.after, Mapping) else self.after
        if given is None and self.after is None:
            return None
        number = checkpoint_id(str(given))
        if number is not None:
            return number
        if not isinstance(given, str):
            raise InvalidConfig(
                f"after={self.after!r}: write the output of a task that triggered a checkpoint, a pointer, or an id such as chk-7"
            )
        pointer = pointer_of(given)
        if isinstance(pointer, Pointer):
            return pointer.id
        return open_savepoint(pointer, CheckpointStorageHook(self.checkpoint_conn_id).get_store_beside()).seal.id
