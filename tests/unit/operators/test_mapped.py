"""Mapped tasks that submit: what is refused where it is written and where it runs, and how an instance is rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.coordinator.histories import read
from airflow_checkpoint_provider.coordinator.indexes import Indexes
from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, NotSupportedYet
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerCheckpointOperator
from airflow_checkpoint_provider.operators.bash import CheckpointedBashOperator
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.state_store import TaskStateStore
from tests.unit.operators.submissions import DagRun, TaskInstance, confs, values

RUN = "manual__1"
NEEDS_ITEM = r"load: a mapped task needs item=.*\.expand\(item=\["


def partial(**options: Any) -> Any:
    return CheckpointedSparkSubmitOperator.partial(
        **{"task_id": "load", "application": "job.py", "conn_id": "local", **options}
    )


# -- where it is written -------------------------------------------------------------------------------------------------


def test_mapped_task_without_an_item_is_refused() -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match=NEEDS_ITEM):
        partial().expand(name=["a", "b"])


def test_list_of_arguments_without_an_item_is_refused() -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match=NEEDS_ITEM):
        partial().expand_kwargs([{"item": "a"}, {"name": "b"}])


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["a", ""], "item='': an item is printable text"),
        (["a", "b" * 1001], "of 1 to 1000 characters"),
        (["a", 7], "item=7 is not text"),
        (["a", "1"], r"item='1' is the map index, which is a position"),
    ],
)
def test_item_that_names_nothing_is_refused(items: list[Any], said: str) -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidName, match=said):
        partial().expand(item=items)
    with DAG("etl", schedule=None), pytest.raises(InvalidName, match=said):
        partial().expand_kwargs([{"item": item} for item in items])


def test_item_that_stands_twice_is_refused() -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match="item='a' stands twice in the list"):
        partial().expand(item=["a", "b", "a"])


def test_item_that_all_instances_share_is_refused() -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match="item='a' is the same for all instances"):
        partial(item="a").expand(name=["a", "b"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"job_id": "{{ ds }}"}, "is not a job id"),
        ({"scope": "day"}, "scope='day': write"),
        ({"scope": "job"}, r'scope="job" needs max_active_runs=1'),
        ({"application": "job.jar"}, "runs PySpark jobs"),
        ({"conf": {"spark.checkpointed.job": "x"}}, "the task writes the confs"),
    ],
)
def test_arguments_that_are_not_mapped_are_checked(options: dict[str, Any], said: str) -> None:
    with DAG("etl", schedule=None), pytest.raises((InvalidConfig, InvalidName, NotSupportedYet), match=said):
        partial(**options).expand(item=["a", "b"])


def test_two_tasks_with_one_job_id_are_refused() -> None:
    with DAG("etl", schedule=None):
        partial(job_id="tables").expand(item=["a", "b"])
        with pytest.raises(InvalidConfig, match="have one job id, 'tables'"):
            CheckpointedSparkSubmitOperator(task_id="other", application="job.py", job_id="tables")


def test_two_tasks_with_one_job_id_and_two_items_are_accepted() -> None:
    with DAG("etl", schedule=None):
        for table in ("orders", "payments"):
            CheckpointedSparkSubmitOperator(task_id=table, application="job.py", job_id="tables", item=table)


def test_task_in_a_mapped_group_needs_an_item() -> None:
    @task_group
    def each(table: str) -> None:
        CheckpointedSparkSubmitOperator(task_id="load", application="job.py", name=table)

    @task_group
    def same(table: str) -> None:
        CheckpointedSparkSubmitOperator(task_id="load", application="job.py", name=table, item="a")

    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match=r"each\.load: a mapped task needs item="):
        each.expand(table=["a", "b"])
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match=r"same\.load: item='a' is the same for all"):
        same.expand(table=["a", "b"])


def test_lists_that_are_known_when_it_runs_are_accepted() -> None:
    with DAG("etl", schedule=None) as dag:

        @task
        def tables() -> list[str]:
            return []

        assert isinstance(partial().expand(item=tables()), MappedOperator)
        partial(task_id="kwargs").expand_kwargs(tables())
        partial(task_id="other", item="{{ task.name }}").expand(name=["a", "b"])
        partial(task_id="literal").expand(item=["a", "b"])
    assert dag.task_dict["load"].upstream_task_ids == {"tables"}


def test_other_operators_with_the_mixin_are_mapped_in_the_same_way() -> None:
    with DAG("etl", schedule=None) as dag:
        mapped = CheckpointedBashOperator.partial(task_id="load", bash_command="job.sh {{ task.item }}")
        mapped.expand(item=["a", "b"])
        with pytest.raises(InvalidConfig, match="a mapped task needs item="):
            CheckpointedBashOperator.partial(task_id="other", bash_command="job.sh").expand(env=[{}, {}])
    assert isinstance(dag.task_dict["load"], MappedOperator)
    assert CheckpointedBashOperator.template_fields[0] == "item"


# -- where it runs ---------------------------------------------------------------------------------------------------------


class Instances:
    """The instances of one mapped task, each with Airflow's state of it, and what ``spark-submit`` was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores: dict[int, TaskStateStore] = {}
        self.history: str | None = None  # as Airflow shows it, of the newest try

    def run(self, index: int, try_number: int = 1, max_tries: int = 2, **options: Any) -> list[str]:
        """Run an instance as Airflow does, as far as its submission: it is made of the mapped task, rendered and executed."""
        mapped = options.pop("mapped", {"item": ["orders", "payments"]})
        with DAG("etl", schedule=None, max_active_runs=1, render_template_as_native_obj=options.pop("native", False)):
            operator = partial(retries=2, **options).expand(**mapped)
        made = operator.unmap({name: given[index] for name, given in mapped.items()})
        ti = TaskInstance(task_id="load", map_index=index, try_number=try_number, max_tries=max_tries)
        store = self.stores.setdefault(index, TaskStateStore())
        context = {"ti": ti, "task": made, "dag_run": DagRun(), "task_state_store": store, "run_id": RUN, "ds": "d"}
        made._do_render_template_fields(made, made.template_fields, context, made.get_template_env(), set())
        self.history = made.history
        made.execute(context)
        return (self.folder / "argv").read_text().splitlines()

    @property
    def checkpoints(self) -> Store:
        return open_store(str(self.folder / "checkpoints"))


@pytest.fixture
def instances(folder: Path) -> Instances:
    return Instances(folder)


def test_each_instance_has_the_history_of_its_item(instances: Instances) -> None:
    argv = instances.run(1, application_args=["--table", "{{ task.item }}"])
    assert argv[-2:] == ["--table", "payments"], "rendered after the item"
    assert confs(argv)["spark.checkpointed.history"] == f"jobs/etl.load/runs/{RUN}/items/payments"
    found = read(instances.checkpoints, f"jobs/etl.load/runs/{RUN}/items/payments")
    assert found
    assert instances.history == f"{instances.checkpoints.uri}/{found.keys.prefix}"
    (launch,), (run,) = found.state.launches, found.state.runs
    assert (found.state.item, launch.map_index, launch.spec.token.item) == ("payments", 1, "payments")
    assert (run.owner, run.map_index) == ("etl.load[payments]", 1)
    token = Token(dag="etl", run=RUN, task="load")
    registered = Indexes(instances.checkpoints, History("etl.load", RUN), token).registered(1)
    assert registered
    assert registered.item == "payments"


def test_what_airflow_stores_for_an_index_is_kept_by_item(instances: Instances) -> None:
    """The index may have another item in its next try, whose history is another one."""
    instances.run(0, 1)
    instances.run(0, 2, mapped={"item": ["stock", "orders"]})
    keys = set(instances.stores[0]._values)
    assert keys == {"checkpoint_generation", "checkpoint_history.orders", "checkpoint_history.stock"}


def test_template_can_be_the_item(instances: Instances) -> None:
    argv = instances.run(1, item="{{ task.conf['spark.table'] }}", mapped={"conf": [{}, {"spark.table": "stock"}]})
    assert values(argv, "--conf")
    assert read(instances.checkpoints, f"jobs/etl.load/runs/{RUN}/items/stock")


def test_scope_and_item_name_a_history_together(instances: Instances) -> None:
    instances.run(0, scope="job")
    assert read(instances.checkpoints, "jobs/etl.load/job/items/orders")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"item": "{{ ti.map_index }}", "mapped": {"name": ["a", "b"]}}, r"item='1' is the map index"),
        ({"item": "{{ '' }}", "mapped": {"name": ["a", "b"]}}, "printable text"),
        ({"item": "{{ 7 }}", "native": True, "mapped": {"name": ["a", "b"]}}, "item=7 is not text"),
    ],
)
def test_item_is_checked_once_it_is_rendered(instances: Instances, options: dict[str, Any], said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        instances.run(1, **options)
    assert not (instances.folder / "argv").exists()


def test_mapped_task_without_an_item_submits_nothing(instances: Instances) -> None:
    """Its list of arguments was not known where it was written."""
    with pytest.raises(AirflowFailException, match="a mapped task needs item="):
        instances.run(1, item="{{ none }}", native=True, mapped={"name": ["a", "b"]})
    assert not (instances.folder / "argv").exists()


def test_task_that_is_not_mapped_may_have_an_item(folder: Path) -> None:
    with DAG("etl", schedule=None):
        operator = CheckpointedSparkSubmitOperator(task_id="load", application="job.py", conn_id="local", item="orders")
    context = {"ti": TaskInstance(task_id="load"), "dag_run": DagRun(), "task_state_store": TaskStateStore()}
    operator.execute(context)
    found = read(open_store(str(folder / "checkpoints")), f"jobs/etl.load/runs/{RUN}/items/orders")
    assert found
    assert found.state.launches[0].map_index is None


# -- tasks that work on an item --------------------------------------------------------------------------------------------


def test_item_of_a_mapped_job_must_be_named() -> None:
    with DAG("etl", schedule=None):
        mapped = partial(job_id="tables", checkpoint_conn_id="in_s3").expand(item=["orders", "payments"])
        with pytest.raises(InvalidConfig, match=r"job=.load. has a history for each item\. Write which"):
            TriggerCheckpointOperator(task_id="any", job=mapped)
        trigger = TriggerCheckpointOperator(task_id="one", job=mapped, item="orders")
    assert trigger.history(TaskInstance()) == History("tables", RUN, "orders")
    assert trigger.checkpoint_conn_id == "in_s3"


def test_task_in_the_same_mapped_group_takes_the_item() -> None:
    made: list[TriggerCheckpointOperator] = []

    @task_group
    def each(table: str) -> None:
        load = CheckpointedSparkSubmitOperator(task_id="load", application="job.py", item=table)
        made.append(TriggerCheckpointOperator(task_id="trigger", job=load))

    with DAG("etl", schedule=None) as dag:
        each.expand(table=["orders", "payments"])
        with pytest.raises(InvalidConfig, match="or put this task into the same mapped task group"):
            TriggerCheckpointOperator(task_id="outside", job=dag.task_dict["each.load"])
    assert made[0].item is vars(dag.task_dict["each.load"])["item"]


def test_job_id_and_item_name_a_history() -> None:
    with DAG("etl", schedule=None):
        trigger = TriggerCheckpointOperator(task_id="one", job="etl.load", run="r1", item="orders")
        shared = TriggerCheckpointOperator(task_id="two", job="etl.load", item="orders")
        with pytest.raises(InvalidName, match="printable text"):
            TriggerCheckpointOperator(task_id="three", job="etl.load", item=" ")
    assert trigger.history(TaskInstance()) == History("etl.load", "r1", "orders")
    assert shared.history(TaskInstance()) == History("etl.load", None, "orders")


# -- deferrable ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferrable", [True, False])
def test_mapped_task_is_deferrable(deferrable: bool) -> None:
    """It is no parameter of the constructor, so Airflow's own ``partial`` refuses it."""
    with DAG("etl", schedule=None):
        task = partial(deploy_mode="cluster", deferrable=deferrable).expand(item=["a", "b"])
    assert task.unmap({"item": "a"}).deferrable is deferrable


def test_default_of_a_mapped_task_is_a_default() -> None:
    """In client mode it does not hold, and is no error."""
    with DAG("etl", schedule=None):
        task = partial(default_args={"deferrable": True}).expand(item=["a", "b"])
    instance = task.unmap({"item": "a"})
    assert (instance.deferrable, instance._default_deferrable) == (None, True)


def test_mapped_task_in_client_mode_is_not_deferrable() -> None:
    with DAG("etl", schedule=None), pytest.raises(NotSupportedYet, match="in client mode"):
        partial(deploy_mode="client", deferrable=True).expand(item=["a", "b"])
