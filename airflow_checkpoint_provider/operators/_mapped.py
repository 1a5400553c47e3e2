"""Mapped tasks that submit, as far as they are known where they are written. Runs in Airflow (DAG processor, worker).

Airflow does not construct a mapped operator at parse. So ``partial(...)`` returns an object whose ``expand`` makes the checks that the
operator's constructor would make. The task itself makes all checks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.hooks.references import known_at_parse
from airflow_checkpoint_provider.operators._deferred import DeferrableLaunch
from airflow_checkpoint_provider.operators._items import checked_item
from airflow_checkpoint_provider.operators._parameters import refuse_fixed_key, refuse_shared_scope
from airflow_checkpoint_provider.protocol.keys import check_job_id, job_id_of


class SubmitPartial(OperatorPartial):
    """What ``partial(...)`` of an operator that submits a job returns."""

    __slots__ = ()

    def expand(self, **mapped: Any) -> MappedOperator:
        made = super().expand(**mapped)  # first, else Airflow warns that nothing was mapped
        self._check(mapped)
        return _checked(made)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        made = super().expand_kwargs(kwargs, strict=strict)
        literal = isinstance(kwargs, Sequence) and all(isinstance(each, Mapping) for each in kwargs)
        items = [each["item"] for each in kwargs if "item" in each] if literal else []
        if literal and len(items) < len(kwargs):
            self._check({})
        elif literal:
            self._check({"item": items})
        return _checked(made)

    def _check(self, mapped: Mapping[str, Any]) -> None:
        """Raise ``InvalidConfig`` or ``InvalidName`` for items that cannot be the keys of histories. The output of a task is not known yet."""
        task_id, items = str(self.kwargs["task_id"]), mapped.get("item")
        if "item" not in mapped:
            check_item_of(task_id, self.kwargs.get("item"))
        elif isinstance(items, Sequence) and not isinstance(items, str):
            _check_items(task_id, items)


def checked(partial: OperatorPartial) -> SubmitPartial:
    """Return the same partial, whose ``expand`` checks the items."""
    partial.__class__ = SubmitPartial  # a new object would make Airflow warn that the first one was never mapped
    assert isinstance(partial, SubmitPartial)
    return partial


def _checked(task: MappedOperator) -> MappedOperator:
    """Make the checks of the operator's constructor, as far as the arguments are not mapped."""
    given = task.partial_kwargs
    job_id, scope = given.get("job_id"), given.get("scope", "run")
    if job_id is not None:
        check_job_id(job_id)
    refuse_fixed_key(task.task_id, scope)
    task.operator_class.check_arguments(given)  # type: ignore[attr-defined]  # of the operators here
    if task.dag is not None:
        refuse_shared_scope(task.task_id, scope, task.dag)
        refuse_shared_name(task.dag, JobOfTask.of(task, task.dag))
    return task


def require_item(task_id: str, item: object) -> None:
    """Raise ``InvalidConfig`` for a mapped task without an item."""
    if item is None:
        raise InvalidConfig(
            f"{task_id}: a mapped task needs item=, the key of an instance's history: a map index is a position, and means something else"
            ' after the list was changed. Write .expand(item=["orders", "payments"]), or item="{{ task.… }}" in .partial(…)'
        )


def check_item_of(task_id: str, item: object) -> None:
    """Raise ``InvalidConfig`` if an item, as it is written, is none or the same for all instances."""
    require_item(task_id, item)
    if known_at_parse(item):
        raise InvalidConfig(
            f"{task_id}: item={item!r} is the same for all instances of a mapped task, which would share one history. Map it, as in"
            ' .expand(item=["orders", "payments"]), or write a template, as in item="{{ task.… }}"'
        )


def _check_items(task_id: str, items: Sequence[Any]) -> None:
    """Raise ``InvalidName`` for an item of a literal list that is none, and ``InvalidConfig`` for one that stands in it twice."""
    literal = [(index, item) for index, item in enumerate(items) if known_at_parse(item)]
    for index, item in literal:
        checked_item(item, index)
    names = [item for _, item in literal]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidConfig(
            f"{task_id}: item={twice!r} stands twice in the list; two instances would write one history. Take one out"
        )


@dataclass(frozen=True)
class JobOfTask:
    """What a task of a DAG submits, as it is written: the job, the scope of its histories, and the item if it is the same text always."""

    task_id: str
    job: str
    scope: str
    item: str | None = None

    @classmethod
    def of(cls, task: Any, dag: DAG) -> JobOfTask:
        given = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
        job_id, item = written_job_id(task), given.get("item")
        fixed = item if isinstance(item, str) and known_at_parse(item) else None
        name = job_id if job_id is not None else job_id_of(dag.dag_id, task.task_id)
        return cls(task.task_id, name, given.get("scope", "run"), fixed)


def written_job_id(task: Any) -> str | None:
    """Return the job id that a task writes; None if it takes its own name."""
    found: str | None = (
        task.partial_kwargs.get("job_id") if isinstance(task, MappedOperator) else vars(task).get("own_job_id")
    )
    return found


def submissions(dag: DAG, *, named: bool) -> Iterator[JobOfTask]:
    """Yield what the tasks of a DAG submit. ``named``: only those tasks that write a job id."""
    for task in dag.task_dict.values():
        if named and written_job_id(task) is None:
            continue
        kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
        if issubclass(kind, DeferrableLaunch):
            yield JobOfTask.of(task, dag)


def refuse_shared_name(dag: DAG, own: JobOfTask) -> None:
    """Raise ``InvalidConfig`` if another task of the DAG submits the same job with the same scope: the two would write one history, and
    each would start from the other's checkpoints. Two tasks may share a job if each has another item.
    """
    # Each task of a DAG file calls this. The name of a task is that of another one only if that one writes it.
    by_default = own.job == job_id_of(dag.dag_id, own.task_id)
    for other in submissions(dag, named=by_default):
        if other.task_id == own.task_id or (other.job, other.scope) != (own.job, own.scope):
            continue
        if None not in (own.item, other.item) and own.item != other.item:
            continue
        raise InvalidConfig(
            f"tasks {other.task_id!r} and {own.task_id!r} of DAG {dag.dag_id!r} have one job id, {own.job!r}, and"
            f" one scope, {own.scope!r}, so they would share one history. Give each its own job_id="
        )
