"""A checkpoint from trigger to notification in one line of a DAG. Runs in Airflow (DAG processor)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import TaskGroup
from airflow.sdk.definitions._internal.mixins import DependencyMixin
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    TriggerCheckpointOperator,
)
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor

# Written at the tasks, so that ``default_args`` of the DAG or of a group around this one do not change what the group promises
AFTER_SUCCESS: dict[str, Any] = {"trigger_rule": "all_success"}
SENSOR: dict[str, Any] = {"soft_fail": False, "never_fail": False}  # a checkpoint that fails is no skip
OUTPUT: dict[str, Any] = {"do_xcom_push": True}  # the tasks behind read it


class CheckpointTaskGroup(TaskGroup):
    """Runs trigger → acknowledged → ``gate`` → finalize → notify, and abort if one of them fails.

    ``notify`` is the only leaf: tasks after the group run if the checkpoint is completed; if it is not, the DAG run fails.
    If the gate is skipped, ``notify`` is skipped too, and the checkpoint expires. ``default_args`` of the DAG change none of this. Only
    the trigger and the gate take a ``trigger_rule`` from there: the trigger's rule says after which tasks the group starts.

    :param group_id: the id of the group, which is the prefix of its tasks' ids.
    :param job: as in ``TriggerCheckpointOperator``, which takes all other parameters.
    :param kind: "checkpoint", or "full_checkpoint": every state is written again.
    :param gate: called with the trigger's output. It returns the task (or a task group) that must succeed before the
        checkpoint is completed: a ``@task`` function, or a lambda that makes an operator. With a gate, the checkpoint is gated.
    """

    def __init__(
        self,
        group_id: str = "checkpoint",
        *,
        job: CheckpointedJobMixin | MappedOperator | str,
        kind: str = "checkpoint",
        gate: Callable[[Any], Any] | None = None,
        **trigger: Any,
    ) -> None:
        super().__init__(group_id)
        with self:
            _add_tasks(gate, job=job, kind=kind, gated=gate is not None, **trigger)


def _add_tasks(gate: Callable[[Any], Any] | None, **arguments: Any) -> None:
    trigger = TriggerCheckpointOperator(task_id="trigger", **OUTPUT, **arguments)
    reference: dict[str, Any] = {"checkpoint": trigger.output, "checkpoint_conn_id": trigger.checkpoint_conn_id}
    waits = {**reference, "deferrable": trigger.deferrable, "poke_interval": trigger.poke_interval, **SENSOR}
    acknowledged = CheckpointAcknowledgedSensor(task_id="acknowledged", **AFTER_SUCCESS, **waits)
    finalize = FinalizeCheckpointOperator(task_id="finalize", **AFTER_SUCCESS, **OUTPUT, **reference)
    steps: list[Any] = [trigger, acknowledged, finalize]
    if gate is not None:
        steps.insert(2, _gate_task(gate, trigger.output))
        acknowledged >> finalize  # a gate with a rule of its own may run, and succeed, although this failed
    abort = AbortCheckpointOperator(task_id="abort", trigger_rule="one_failed", **reference)
    # Notify runs after abort too. Else abort would be a second leaf, which succeeds when a step failed; normally it is skipped.
    # Notify does not run after the trigger directly: if the gate was skipped, the trigger would be the one success.
    waits = {**waits, "checkpoint": finalize.output, "trigger_rule": "none_failed_min_one_success"}
    notify = NotifyCheckpointCompleteOperator(task_id="notify", wait_for_commit=trigger.confirm_commits, **waits)
    for step, following in zip(steps, [*steps[1:], notify], strict=True):
        step >> following
        step >> abort
    abort >> notify


def _gate_task(gate: Callable[[Any], Any], output: Any) -> DependencyMixin:
    task = gate(output) if callable(gate) else None
    if not isinstance(task, DependencyMixin):
        raise InvalidConfig(
            f"gate={gate!r} returned {task!r}, which is not a task: write a @task function that takes the checkpoint, or"
            " gate=lambda checkpoint: SomeOperator(...)"
        )
    return task
