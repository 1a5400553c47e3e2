"""``CheckpointTaskGroup``: its tasks, edges and leaf. tests/e2e runs it on a scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow.sdk.bases.operator import BaseOperator

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.task_groups import CheckpointTaskGroup


@task
def audit(asked: Any) -> None:
    """Nothing."""


def task_of(dag: DAG, task_id: str) -> Any:
    return dag.get_task(task_id)


def edges(dag: DAG) -> dict[str, set[str]]:
    return {
        task_.task_id.removeprefix("checkpoint."): {to.removeprefix("checkpoint.") for to in task_.downstream_task_ids}
        for task_ in dag.tasks
    }


def test_group_without_a_gate_has_five_tasks_and_one_leaf() -> None:
    with DAG("audited", schedule=None) as dag:
        group = CheckpointTaskGroup(job="orders")
    assert edges(dag) == {
        "trigger": {"acknowledged", "finalize", "abort"},
        "acknowledged": {"finalize", "abort"},
        "finalize": {"notify", "abort"},
        "abort": {"notify"},
        "notify": set(),
    }
    assert [leaf.node_id for leaf in group.leaves] == ["checkpoint.notify"]
    trigger = task_of(dag, "checkpoint.trigger")
    assert (trigger.gated, trigger.confirm_commits) == (False, True)
    assert task_of(dag, "checkpoint.notify").awaited == "committed"


def test_abort_runs_after_a_failure_and_notify_after_both() -> None:
    with DAG("audited", schedule=None) as dag:
        CheckpointTaskGroup(job="orders", gate=audit)
    rules = {task_.task_id.removeprefix("checkpoint."): task_.trigger_rule.value for task_ in dag.tasks}
    others = dict.fromkeys(("trigger", "acknowledged", "audit", "finalize"), "all_success")
    assert rules == {**others, "abort": "one_failed", "notify": "none_failed_min_one_success"}


@pytest.mark.parametrize("rule", ["none_failed", "none_failed_min_one_success", "all_done", "always", "one_success"])
@pytest.mark.parametrize("inner", [False, True], ids=["DAG", "group around it"])
def test_rule_of_the_dag_takes_out_no_gate(rule: str, inner: bool) -> None:
    """Else finalize would complete a checkpoint whose gate was skipped or has failed. The trigger and the gate belong to the DAG."""
    of_dag: dict[str, Any] = {"default_args": {"trigger_rule": rule}}
    with (
        DAG("audited", schedule=None, **({} if inner else of_dag)) as dag,
        TaskGroup("around", **(of_dag if inner else {})),
    ):
        CheckpointTaskGroup(job="orders", gate=audit)
    rules = {task_.task_id.rpartition(".")[2]: task_.trigger_rule.value for task_ in dag.tasks}
    assert rules == {
        "trigger": rule,
        "acknowledged": "all_success",
        "audit": rule,
        "finalize": "all_success",
        "abort": "one_failed",
        "notify": "none_failed_min_one_success",
    }


def test_finalize_needs_the_acknowledgement_whatever_lets_the_gate_run() -> None:
    with DAG("audited", schedule=None) as dag:
        CheckpointTaskGroup(job="orders", gate=lambda asked: BaseOperator(task_id="audit", trigger_rule="all_done"))
    assert edges(dag)["acknowledged"] == {"audit", "finalize", "abort"}


def test_rule_of_the_group_is_that_of_its_trigger() -> None:
    with DAG("audited", schedule=None) as dag:
        CheckpointTaskGroup(job="orders", trigger_rule="none_failed")
    rules = [task_of(dag, f"checkpoint.{name}").trigger_rule.value for name in ("trigger", "acknowledged", "finalize")]
    assert rules == ["none_failed", "all_success", "all_success"]


@pytest.mark.parametrize(
    ("option", "names", "found"),
    [
        ({"do_xcom_push": False}, ("trigger", "finalize"), True),
        ({"soft_fail": True}, ("acknowledged", "notify"), False),
        ({"never_fail": True}, ("acknowledged", "notify"), False),
    ],
)
def test_default_arguments_turn_no_failure_into_a_skip_and_take_no_output(
    option: dict[str, bool], names: tuple[str, ...], found: bool
) -> None:
    with DAG("audited", schedule=None, default_args=option) as dag:
        CheckpointTaskGroup(job="orders", gate=audit)
    (written,) = option
    assert {name: getattr(task_of(dag, f"checkpoint.{name}"), written) for name in names} == dict.fromkeys(names, found)


def test_gate_stands_between_acknowledged_and_finalize() -> None:
    with DAG("audited", schedule=None) as dag:
        group = CheckpointTaskGroup(job="orders", gate=audit)
    found = edges(dag)
    assert found["acknowledged"] == {"audit", "finalize", "abort"}
    assert found["audit"] == {"finalize", "abort"}
    assert "audit" in found["trigger"]
    assert [leaf.node_id for leaf in group.leaves] == ["checkpoint.notify"]
    assert task_of(dag, "checkpoint.trigger").gated is True


def test_gate_can_be_an_operator_or_a_group() -> None:
    def several(asked: Any) -> TaskGroup:
        with TaskGroup("audits") as audits:
            audit.override(task_id="one")(asked) >> audit.override(task_id="two")(asked)
        return audits

    with DAG("audited", schedule=None) as dag:
        CheckpointTaskGroup("first", job="orders", gate=lambda asked: BaseOperator(task_id="looks"))
        CheckpointTaskGroup("second", job="orders", gate=several)
    assert task_of(dag, "first.acknowledged").downstream_task_ids == {"first.looks", "first.finalize", "first.abort"}
    assert "second.audits.one" in task_of(dag, "second.acknowledged").downstream_task_ids
    assert task_of(dag, "second.audits.two").downstream_task_ids == {"second.finalize", "second.abort"}


@pytest.mark.parametrize("gate", [lambda asked: None, lambda asked: 7, lambda asked: [], "audit", 7])
def test_gate_that_returns_no_task_is_refused(gate: Any) -> None:
    with DAG("audited", schedule=None), pytest.raises(InvalidConfig, match="which is not a task"):
        CheckpointTaskGroup(job="orders", gate=gate)


def test_options_of_the_group_reach_the_tasks_that_need_them() -> None:
    with DAG("etl", schedule=None) as dag:
        delays = CheckpointedSparkSubmitOperator(task_id="delays", application="job.py", checkpoint_conn_id="mine")
        CheckpointTaskGroup(job=delays, start_timeout=600, timeout="5 min", deferrable=True, poke_interval=2)
    for name in ("trigger", "acknowledged", "finalize", "notify", "abort"):
        assert task_of(dag, f"checkpoint.{name}").checkpoint_conn_id == "mine"
    for name in ("trigger", "acknowledged", "notify"):
        waits = task_of(dag, f"checkpoint.{name}")
        assert (waits.deferrable, waits.poke_interval) == (True, 2)
    asked = task_of(dag, "checkpoint.trigger")
    assert (asked.start_timeout_s, asked.timeout_s) == (600, 300)
    assert delays.downstream_task_ids == set()


def test_kind_savepoint_is_refused() -> None:
    with DAG("audited", schedule=None), pytest.raises(InvalidConfig, match="write TriggerSavepointOperator"):
        CheckpointTaskGroup(job="orders", kind="savepoint")


def test_wait_for_completion_is_refused() -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match="wait_for_completion"):
        CheckpointTaskGroup(job="orders", gate=audit, wait_for_completion=True)


def test_group_in_a_mapped_group_works_on_the_item_of_its_instance() -> None:
    @task_group
    def each(table: str) -> None:
        load = CheckpointedSparkSubmitOperator(task_id="load", application="job.py", item=table)
        load >> CheckpointTaskGroup(job=load)

    with DAG("audited", schedule=None) as dag:
        each.expand(table=["orders", "payments"])
    trigger = task_of(dag, "each.checkpoint.trigger")
    assert trigger.item is task_of(dag, "each.load").item
    assert trigger.job_task_id == "each.load"


def test_group_takes_the_item_that_is_written() -> None:
    with DAG("audited", schedule=None) as dag:
        load = CheckpointedSparkSubmitOperator.partial(task_id="load", application="job.py").expand(item=["a", "b"])
        CheckpointTaskGroup(job=load, item="b")
    assert task_of(dag, "checkpoint.trigger").item == "b"
