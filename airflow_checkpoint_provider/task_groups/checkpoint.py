"""A checkpoint from trigger to notification in one line of a DAG. Runs in Airflow (DAG processor)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import TaskGroup
from airflow.sdk.definitions._internal.mixins import DependencyMixin

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    CheckpointedSparkSubmitOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    TriggerCheckpointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor


class CheckpointTaskGroup(TaskGroup):
    """trigger → acknowledged → ``gate`` → finalize → notify; and abort if one of them fails.

    ``notify`` is the only leaf: what follows the group runs when the checkpoint is completed, and the run fails when it is
    not. If the gate is skipped, ``notify`` is skipped too, and the checkpoint expires.

    :param job: as in ``TriggerCheckpointOperator``, which takes all other parameters.
    :param gate: called with the trigger's output. It returns the task (or a task group) that must succeed before the
        checkpoint is completed: a ``@task`` function, or a lambda that makes an operator. The checkpoint is gated then.
    """

    def __init__(
        self,
        group_id: str = "checkpoint",
        *,
        job: CheckpointedSparkSubmitOperator | str,
        kind: str = "checkpoint",
        gate: Callable[[Any], Any] | None = None,
        **trigger: Any,
    ) -> None:
        super().__init__(group_id)
        with self:
            _add_tasks(gate, job=job, kind=kind, gated=gate is not None, **trigger)


def _add_tasks(gate: Callable[[Any], Any] | None, **arguments: Any) -> None:
    trigger = TriggerCheckpointOperator(task_id="trigger", **arguments)
    given: dict[str, Any] = {"checkpoint": trigger.output, "checkpoint_conn_id": trigger.checkpoint_conn_id}
    waits = {**given, "deferrable": trigger.deferrable, "poke_interval": trigger.poke_interval}
    steps: list[Any] = [trigger, CheckpointAcknowledgedSensor(task_id="acknowledged", **waits)]
    if gate is not None:
        steps.append(_gate(gate, trigger.output))
    finalize = FinalizeCheckpointOperator(task_id="finalize", **given)
    steps.append(finalize)
    abort = AbortCheckpointOperator(task_id="abort", trigger_rule="one_failed", **given)
    # Behind abort, too, or abort would be a second leaf, which succeeds when something failed; normally it is skipped.
    # Not behind the trigger: where the gate was skipped, the trigger would be the one success.
    waits = {**waits, "checkpoint": finalize.output, "trigger_rule": "none_failed_min_one_success"}
    notify = NotifyCheckpointCompleteOperator(task_id="notify", wait_for_commit=trigger.confirm_commits, **waits)
    for step, following in zip(steps, [*steps[1:], notify], strict=True):
        step >> following
        step >> abort
    abort >> notify


def _gate(gate: Callable[[Any], Any], output: Any) -> DependencyMixin:
    made = gate(output) if callable(gate) else None
    if not isinstance(made, DependencyMixin):
        raise InvalidConfig(
            f"gate={gate!r} gave {made!r}, which is no task: write a @task function that takes the checkpoint, or"
            " gate=lambda checkpoint: SomeOperator(...)"
        )
    return made
