"""The parameters of a task that submits a job: its checks, its history, and what they make of a launch. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NoReturn

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, check_allowance
from airflow_checkpoint_provider.coordinator.journal import utc_now, utc_text
from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet, Refused
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse, start_in
from airflow_checkpoint_provider.operators._base import generation_of, has_launched, history_of
from airflow_checkpoint_provider.operators._launch import LaunchParameters
from airflow_checkpoint_provider.operators._link import Linked
from airflow_checkpoint_provider.operators._parameters import refuse_fixed_key, refuse_later
from airflow_checkpoint_provider.operators._restore_age import RestoreAge
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import check_job_id, checkpoint_id, job_id_of
from airflow_checkpoint_provider.storage import Store

STARTS = ("latest", "none")
MAPPED = (
    "a mapped task that submits a checkpointed job: its instances would share one history, so this version refuses it. Write one task"
    " per item, for example in a loop"
)
HISTORY_KEY = "checkpoint_history"  # in the task's state store: the incarnation that this task wrote to
FROM_CODE = "code"  # the runtime's archive comes from where the connection's ``code`` leads
TEMPLATE_FIELDS = ("scope", "restore", "history")


class JobParameters(Linked):
    """Base of the operators that submit a job: the parameters that they add to those of another operator."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the template fields to those of the other operator."""
        super().__init_subclass__(**kwargs)
        fields = dict.fromkeys(field for base in cls.__mro__ for field in vars(base).get("template_fields", ()))
        cls.template_fields = (*(field for field in fields if field not in TEMPLATE_FIELDS), *TEMPLATE_FIELDS)

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
        self.own_job_id, self.scope, self.restore = (
            job_id,
            scope,
            restore,
        )  # other operators keep the id of their service's job in job_id
        self.require_state, self.on_clear = require_state, on_clear
        self.checkpointing, self.checkpoint_conn_id, self.archive = checkpointing, checkpoint_conn_id, archive
        self.allow_non_restored_state = allow_non_restored_state
        self.max_restore_age = max_restore_age
        self.history: str | None = None  # its URI, which Airflow shows beside the rendered templates
        refuse_later(item=item)
        refuse_fixed_key(self.task_id, scope)

    @classmethod
    def partial(cls, **options: Any) -> NoReturn:
        """Refuse ``partial(...).expand(...)`` where it is written, so that the DAG is not imported."""
        raise NotSupportedYet(f"task_id={options.get('task_id')!r}: {MAPPED}")

    def checkpoint_store(self) -> Store:
        """Return the store of the checkpoints. Raise the errors of its connection."""
        return CheckpointStorageHook(self.checkpoint_conn_id).get_store()

    def check_parameters(self) -> None:
        """Raise ``InvalidConfig`` or ``InvalidName``. Called when the DAG is parsed, and in ``execute``: mapped operators are not constructed
        at parse.
        """
        dag = self._own_dag()
        if self.own_job_id is not None:
            check_job_id(self.own_job_id)
        if self.get_closest_mapped_task_group() is not None:
            raise NotSupportedYet(f"{self.task_id}: {MAPPED}")
        if dag:
            self._refuse_shared_name(dag)
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
        if self.scope == "job" and dag and dag.max_active_runs != 1:
            raise InvalidConfig(
                f'{self.task_id}: scope="job" needs max_active_runs=1 on DAG {dag.dag_id} (it is {dag.max_active_runs}):'
                " two runs cannot continue from one state at the same time"
            )

    def _name(self, dag: DAG | None) -> str:
        """Return the job id."""
        if self.own_job_id is not None:
            return self.own_job_id
        return job_id_of(dag.dag_id, self.task_id) if dag else self.task_id

    def _refuse_shared_name(self, dag: DAG) -> None:
        """Raise ``InvalidConfig`` if another task of the DAG submits the same job with the same scope: the two would write one
        history, and each would start from the other's checkpoints."""
        for task in dag.task_dict.values():
            if not isinstance(task, JobParameters) or task.task_id == self.task_id:
                continue
            if (task._name(dag), task.scope) == (self._name(dag), self.scope):
                raise InvalidConfig(
                    f"tasks {task.task_id!r} and {self.task_id!r} of DAG {dag.dag_id!r} have one job id, {self._name(dag)!r}, and"
                    f" one scope, {self.scope!r}, so they would share one history. Give each its own job_id="
                )

    def _own_dag(self) -> DAG | None:
        """Return the DAG; None for an operator that gets its DAG later."""
        return self.dag if self.has_dag() else None  # type: ignore[no-untyped-call]

    # -- when it runs ------------------------------------------------------------------------------------------------

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        super().render_template_fields(context, jinja_env)
        with contextlib.suppress(Exception):  # execute raises the same error
            ti = context["ti"]
            history = history_of(self.own_job_id, self.scope, ti, ti.task_id)
            self.history = f"{self.checkpoint_store().uri}/{history.prefix}"

    def reference(self, ti: Any) -> HistoryReference:
        history = history_of(self.own_job_id, self.scope, ti, ti.task_id)
        return HistoryReference(self.checkpoint_conn_id, history.prefix, ti.run_id)

    def refuse_instance(self, context: Any) -> None:
        """Raise ``AirflowFailException`` for an instance of a mapped task, and for a backfill that would rewind live state."""
        ti = context["ti"]
        if ti.map_index is not None and ti.map_index >= 0:
            raise AirflowFailException(str(NotSupportedYet(MAPPED)))
        if self.scope == "job" and context["dag_run"].run_type == "backfill":
            error = Refused(
                'scope="job": a backfill would rewind the live state. Give the backfill its own job_id and restore=<pointer>'
            )
            raise AirflowFailException(str(error))

    def launch_parameters(self, context: Any, store: Store) -> LaunchParameters:
        """Return the rendered parameters of the launch of this try."""
        ti, dag_run = context["ti"], context["dag_run"]
        history = history_of(self.own_job_id, self.scope, ti, ti.task_id)
        generation = generation_of(context, self.retries, functools.partial(has_launched, store, history, ti))
        starts_over = generation.discarded and self.on_clear == "auto"
        return LaunchParameters(
            history=history,
            token=Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, generation=generation.number),
            try_number=ti.try_number,
            run_after=utc_text(dag_run.run_after),
            now=utc_now(),
            restore=start_in(self.restore, *STARTS),
            require_state=self.require_state,
            on_clear="restart" if starts_over else self.on_clear,
            discarded=starts_over,
            durable=bool(getattr(self, "durable", True)),
            incarnation=context["task_state_store"].get(HISTORY_KEY, None),
            connection=self.checkpoint_conn_id,
            restore_age=RestoreAge.of(self.max_restore_age),
        )
