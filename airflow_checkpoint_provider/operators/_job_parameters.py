"""The parameters of a task that submits a job: its checks, its history, and what they make of a launch. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, check_allowance
from airflow_checkpoint_provider.coordinator.journal import utc_now, utc_text
from airflow_checkpoint_provider.errors import InvalidConfig, Refused
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference, incarnation_in, known_at_parse, start_in
from airflow_checkpoint_provider.operators import _earlier, _mapped
from airflow_checkpoint_provider.operators._base import generation_of, has_launched, history_of
from airflow_checkpoint_provider.operators._items import checked_item, index_of
from airflow_checkpoint_provider.operators._launched import LaunchParameters
from airflow_checkpoint_provider.operators._link import LinkedTask
from airflow_checkpoint_provider.operators._parameters import refuse_fixed_key, refuse_shared_scope
from airflow_checkpoint_provider.operators._restore_age import RestoreAge
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History, check_job_id, checkpoint_id
from airflow_checkpoint_provider.storage import Store

STARTS = ("latest", "none")
FROM_CODE = "code"  # the runtime's archive comes from where the connection's ``code`` leads
TEMPLATE_FIELDS = ("scope", "restore", "history")


class JobParameters(LinkedTask):
    """Base of the operators that submit a job: the parameters that they add to those of another operator."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the template fields to those of the other operator. The item comes first: other fields may use ``{{ task.item }}``."""
        super().__init_subclass__(**kwargs)
        fields = dict.fromkeys(field for base in cls.__mro__ for field in vars(base).get("template_fields", ()))
        others = (field for field in fields if field not in ("item", *TEMPLATE_FIELDS))
        cls.template_fields = ("item", *others, *TEMPLATE_FIELDS)

    def __init__(
        self,
        *,
        job_id: str | None = None,
        scope: str = "run",
        restore: Any = "latest",
        require_state: bool = False,
        on_clear: str = "auto",
        checkpointing: CheckpointConfig | None = None,
        checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name,
        allow_non_restored_state: AllowanceOption = False,
        max_restore_age: Any = None,
        item: str | None = None,
        archive: str | None = FROM_CODE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.own_job_id = job_id  # other operators keep the id of their service's job in job_id
        self.scope, self.item, self.restore = scope, item, restore
        self._of_item = item is not None  # a template may be rendered to None, which means no other history
        self.require_state, self.on_clear = require_state, on_clear
        self.checkpointing, self.checkpoint_conn_id, self.archive = checkpointing, checkpoint_conn_id, archive
        self.allow_non_restored_state = allow_non_restored_state
        self.max_restore_age = max_restore_age
        self.history: Any = _rendered_history  # its URI, which Airflow shows beside the rendered templates
        refuse_fixed_key(self.task_id, scope)

    @classmethod
    def partial(cls, **options: Any) -> _mapped.SubmitPartial:
        """Return what ``expand`` and ``expand_kwargs`` check as far as it is known where it is written."""
        return _mapped.checked(super().partial(**options))

    @classmethod
    def check_arguments(cls, given: Mapping[str, Any]) -> None:
        """Raise the errors of arguments of a mapped task that are the same for all instances. Called when the DAG is parsed."""

    def checkpoint_store(self) -> Store:
        """Return the store of the checkpoints. Raise the errors of its connection."""
        return CheckpointStorageHook(self.checkpoint_conn_id).get_store()

    def check_parameters(self) -> None:
        """Raise ``InvalidConfig``, or an error for a name. Called when the DAG is parsed, and in ``execute``: mapped operators are not constructed
        at parse.
        """
        dag = self._own_dag()
        if self.own_job_id is not None:
            check_job_id(self.own_job_id)
        if self.get_closest_mapped_task_group() is not None:
            _mapped.check_item_of(self.task_id, self.item)
        elif self.item is not None and known_at_parse(self.item):
            checked_item(self.item, None)
        if dag:
            _mapped.refuse_shared_name(dag, _mapped.JobOfTask.of(self, dag))
        if self.on_clear not in ("auto", "restart", "continue"):
            raise InvalidConfig(f'on_clear={self.on_clear!r}: write "auto", "restart" or "continue"')
        check_allowance(self.allow_non_restored_state)
        RestoreAge.of(self.max_restore_age)
        if self.checkpointing is not None and not isinstance(self.checkpointing, CheckpointConfig):
            raise InvalidConfig(f"checkpointing={self.checkpointing!r}: write CheckpointConfig(...)")
        if self.archive not in (FROM_CODE, None):
            raise InvalidConfig(
                f'archive={self.archive!r}: write "{FROM_CODE}", or None if the image of the driver has this package'
            )
        self._check_scope(dag)

    def _check_scope(self, dag: DAG | None) -> None:
        number = checkpoint_id(start_in(self.restore, *STARTS)) if known_at_parse(self.restore) else None
        if number is not None and self.scope == "run":
            raise InvalidConfig(
                f'restore={self.restore!r}: with scope="run" each run has its own history, so an id is not unique. Write a'
                " pointer, <root>/jobs/…/chk-7"
            )
        if dag:
            refuse_shared_scope(self.task_id, self.scope, dag)

    def _own_dag(self) -> DAG | None:
        """Return the DAG; None for an operator that gets its DAG later."""
        return self.dag if self.has_dag() else None  # type: ignore[no-untyped-call]

    # -- when it runs ------------------------------------------------------------------------------------------------

    def history_of(self, ti: Any) -> History:
        """Return the history of the job, or of its item, once the templates are rendered. Raise an error for an item that names nothing."""
        item = checked_item(self.item, index_of(ti)) if self._of_item else None
        return history_of(self.own_job_id, self.scope, ti, ti.task_id, item)

    def reference(self, ti: Any) -> HistoryReference:
        return HistoryReference(self.checkpoint_conn_id, self.history_of(ti).prefix, ti.run_id)

    def refuse_instance(self, context: Any) -> None:
        """Raise ``InvalidConfig`` for an instance of a mapped task without an item, and ``AirflowFailException`` for a backfill that would
        rewind live state."""
        if index_of(context["ti"]) is not None:
            _mapped.require_item(self.task_id, self.item)
        if self.scope == "job" and context["dag_run"].run_type == "backfill":
            error = Refused(
                'scope="job": a backfill would rewind the live state. Give the backfill its own job_id and restore=<pointer>'
            )
            raise AirflowFailException(str(error))

    def launch_parameters(self, context: Any, store: Store) -> LaunchParameters:
        """Return the rendered parameters of the launch of this try."""
        ti, dag_run = context["ti"], context["dag_run"]
        history = self.history_of(ti)
        generation = generation_of(context, self.retries, functools.partial(has_launched, store, history, ti))
        starts_over = generation.discarded and self.on_clear == "auto"
        return LaunchParameters(
            history=history,
            token=Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=history.item, generation=generation.number),
            try_number=ti.try_number,
            run_after=utc_text(dag_run.run_after),
            now=utc_now(),
            restore=start_in(self.restore, *STARTS),
            restore_incarnation=incarnation_in(self.restore),
            require_state=self.require_state,
            on_clear="restart" if starts_over else self.on_clear,
            discarded=starts_over,
            durable=bool(getattr(self, "durable", True)),
            earlier=_earlier.known(context, history.item),
            map_index=index_of(ti) if history.item is not None else None,
            connection=self.checkpoint_conn_id,
            restore_age=RestoreAge.of(self.max_restore_age),
        )


def _rendered_history(context: Any, jinja_env: Any) -> str | None:
    """Return the URI of the history of a task whose other templates are rendered. Airflow calls it in the place of a template, also for an
    instance of a mapped task."""
    with contextlib.suppress(Exception):  # execute raises the same error
        task = context["task"]
        return f"{task.checkpoint_store().uri}/{task.history_of(context['ti']).prefix}"
    return None
