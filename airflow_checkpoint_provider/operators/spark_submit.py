"""``SparkSubmitOperator`` whose retries go on from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow.configuration import conf as airflow_conf
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.assignment import check_allowance
from airflow_checkpoint_provider.coordinator.journal import utc_now, utc_text
from airflow_checkpoint_provider.coordinator.liveness import read_beat
from airflow_checkpoint_provider.errors import (
    AlreadyFinished,
    CheckpointError,
    CommitStateUnknown,
    InvalidConfig,
    JobSuspended,
    NotSupportedYet,
    Refused,
    Superseded,
)
from airflow_checkpoint_provider.hooks.archive import driver_archive
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import known_at_parse, start_in
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators._base import failing_for_good, history_of
from airflow_checkpoint_provider.operators.follower import follow
from airflow_checkpoint_provider.operators.launch import Launching, Wanted
from airflow_checkpoint_provider.operators.stopping import publish, stopped
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import check_job_id, checkpoint_id
from airflow_checkpoint_provider.protocol.state import AttemptRecord
from airflow_checkpoint_provider.storage import s3_credentials
from airflow_checkpoint_provider.text import messages

STARTS = ("latest", "none")
HISTORY_KEY = "checkpoint_history"  # in the task's state store: the incarnation that this task wrote to


class CheckpointedSparkSubmitOperator(SparkSubmitOperator):
    """Submits a Spark application whose retries and clears go on from its latest completed checkpoint.

    Every parameter of ``SparkSubmitOperator`` stays. The application opens a ``CheckpointedJob``; see the README.

    :param job_id: static name of the job; by default ``dag_id.task_id``.
    :param scope: "run": each DAG run has a history of its own. "job": all runs go on with one. Any other text is itself
        the key, e.g. ``"{{ ds }}"``. (templated)
    :param restore: where a *run starts*: "latest", "none", the id of a checkpoint (``scope="job"``), a pointer, or the output
        of a task that made a checkpoint or a savepoint. Retries and clears go on with the run, whatever stands here.
        (templated)
    :param require_state: refuse to start from nothing.
    :param allow_non_restored_state: what becomes of restored state that the application has not asked for when it ends
        well. False: it is named and handed on. True, or a list of uids: it is left behind. The script's own counts if False.
    :param on_clear: "auto": a run that finished starts again from where it started, one that did not goes on. "restart"
        and "continue" force either.
    :param checkpointing: a ``CheckpointConfig``; the script's own counts if there is none here.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``. Missing: ``$AIRFLOW_HOME/checkpoints``, but only
        with a local Spark master.
    :param durable: True adopts a driver of this task that is still alive; False fences it and submits.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "scope", "restore")

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
        deferrable: bool | None = None,
        allow_non_restored_state: bool | Sequence[str] = False,
        item: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id, self.scope, self.restore = job_id, scope, restore
        self.require_state, self.on_clear = require_state, on_clear
        self.checkpointing, self.checkpoint_conn_id, self.deferrable = checkpointing, checkpoint_conn_id, deferrable
        self.allow_non_restored_state = allow_non_restored_state
        _refuse_later(item=item, deferrable=deferrable)
        self._check()
        self._launching: Launching | None = None
        self._cluster = False  # deploy mode
        self._killed = threading.Event()

    def _check(self) -> None:
        """At parse, and again in ``execute``: mapped operators are not constructed at parse."""
        dag = self._own_dag()
        check_job_id(
            self.job_id if self.job_id is not None else f"{dag.dag_id}.{self.task_id}" if dag else self.task_id
        )
        if self.on_clear not in ("auto", "restart", "continue"):
            raise InvalidConfig(f'on_clear={self.on_clear!r}: write "auto", "restart" or "continue"')
        check_allowance(self.allow_non_restored_state)
        if self.checkpointing is not None and not isinstance(self.checkpointing, CheckpointConfig):
            raise InvalidConfig(f"checkpointing={self.checkpointing!r}: write CheckpointConfig(...)")
        named = checkpoint_id(start_in(self.restore, *STARTS)) if known_at_parse(self.restore) else None
        if named is not None and self.scope == "run":
            raise InvalidConfig(
                f'restore={self.restore!r}: with scope="run" each run has a history of its own, so an id names nothing to start from;'
                " write a pointer, <root>/jobs/…/chk-7"
            )
        if self.scope == "job" and dag and dag.max_active_runs != 1:
            raise InvalidConfig(
                f'{self.task_id}: scope="job" needs max_active_runs=1 on DAG {dag.dag_id} (it is {dag.max_active_runs}):'
                " two runs cannot both go on with one state"
            )

    def _own_dag(self) -> DAG | None:
        """None for an operator that gets its DAG later."""
        return self.dag if self.has_dag() else None  # type: ignore[no-untyped-call]

    # -- running -----------------------------------------------------------------------------------------------------

    def execute(self, context: Any) -> dict[str, Any] | None:  # type: ignore[override]
        ti = context["ti"]
        if ti.map_index is not None and ti.map_index >= 0:
            raise AirflowFailException(
                str(
                    NotSupportedYet(
                        "mapped tasks need item=, which this version does not have; write one task per item"
                    )
                )
            )
        with failing_for_good():
            self._check()
            self._refuse_backfill(context)
            self._hook = hook = self._get_hook()
            self._say_why_not_deferred(hook)
            store = CheckpointStorageHook(self.checkpoint_conn_id, hook.master).get_store()
            s3_credentials.refuse_for_jobs(store)
            self._cluster = hook.deploy_mode == "cluster"
            self._launching = launching = Launching(store, self._wanted(context), self._say, killed=self._killed)
            try:
                self._plan(launching)
            except AlreadyFinished:
                self._say(messages.finished(launching.state, ti.run_id))
                launching.wait_for_process()
                return self._finished(launching)
            context["task_state_store"].set(HISTORY_KEY, launching.state.incarnation)
            if launching.adopted:
                return self._adopt(launching)
            return self._submit(context, launching)

    def _plan(self, launching: Launching) -> None:
        """Who reads the log finds there first why nothing was submitted."""
        try:
            launching.plan()
        except (AlreadyFinished, Superseded, CommitStateUnknown):
            raise
        except JobSuspended:
            publish(launching.coordinator)
            self._wait_suspended(launching)
        except CheckpointError as error:
            self._say(messages.refused(f"{launching.wanted.history.job}, run {launching.wanted.token.run}", error))
            raise

    def _wait_suspended(self, launching: Launching) -> NoReturn:
        """Not in this process: what is rendered must be rendered anew. A try that waits is no try that failed. It looks again
        after as long as a silent driver is borne with: a minute."""
        self._say(messages.suspended(launching.state))
        again = datetime.now(UTC) + timedelta(seconds=launching.beats.still)
        raise AirflowRescheduleException(again) from None  # type: ignore[no-untyped-call]

    def _wanted(self, context: Any) -> Wanted:
        ti, dag_run = context["ti"], context["dag_run"]
        return Wanted(
            history=history_of(self.job_id, self.scope, ti, ti.task_id),
            token=Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, generation=ti.max_tries),
            try_number=ti.try_number, run_after=utc_text(dag_run.run_after), now=utc_now(), restore=start_in(self.restore, *STARTS),
            require_state=self.require_state, on_clear=self.on_clear, durable=bool(self.durable),
            incarnation=context["task_state_store"].get(HISTORY_KEY, None),
        )  # fmt: skip

    def _refuse_backfill(self, context: Any) -> None:
        if self.scope == "job" and context["dag_run"].run_type == "backfill":
            raise AirflowFailException(
                str(
                    Refused(
                        'scope="job": a backfill would rewind the live state; give it a job_id of its own and restore=<pointer>'
                    )
                )
            )

    def _say_why_not_deferred(self, hook: CheckpointedSparkSubmitHook) -> None:
        if (
            hook.deploy_mode != "cluster"
            and self.deferrable is None
            and airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        ):
            self._say(["not deferred: in client mode the driver is a child of this task"])

    def _get_hook(self) -> CheckpointedSparkSubmitHook:
        """Called by the parent, too, after it has added to ``conf``. With the launch, once there is one to submit."""
        arguments = _airflow.spark_hook_arguments(self)
        keys: dict[str, str] = {}
        if self._launching is not None and self._launching.launch is not None:
            keys = {} if self._cluster else s3_credentials.keys(self._launching.store)
            settings = self._launching.settings(self.checkpointing, check_allowance(self.allow_non_restored_state))
            arguments["conf"] = {**(self.conf or {}), **settings.to_confs()}
            arguments["py_files"] = ",".join(filter(None, (self.py_files, str(driver_archive()))))
        return CheckpointedSparkSubmitHook(**arguments, environment=keys)

    def _submit(self, context: Any, launching: Launching) -> dict[str, Any]:
        """Client mode: the parent's ``submit`` blocks to the driver's end. Cluster mode: its poll does, beside our own."""
        ended = threading.Event()
        failure: BaseException | None = None
        with launching.beating() as heart:
            following = {"tells": self._cluster, "on_attach": heart.stop}
            watcher = threading.Thread(
                target=follow, args=(launching, ended), kwargs=following, name="checkpoint-follow", daemon=True
            )
            collector = threading.Thread(
                target=launching.collect_older_runs, args=(ended,), name="checkpoint-garbage", daemon=True
            )
            watcher.start()
            collector.start()
            adopts, self.durable = self.durable, False
            self._hook = None  # the parent makes another one
            try:
                if self._killed.is_set():
                    raise AirflowException("killed before the submit")
                super().execute(context)
            except Exception as error:  # noqa: BLE001 - each way to track a driver raises its own
                failure = error
            finally:
                self.durable = adopts
                ended.set()
                watcher.join(timeout=10)
                collector.join(timeout=10)
        return self._ended(launching, self._hook.returncode if self._hook else None, failure)

    def _adopt(self, launching: Launching) -> dict[str, Any]:
        """Follow a driver that an earlier try started, until it ends. A try that adopts never submits."""
        attempt = follow(launching, self._killed, tells=True)
        if self._killed.is_set():
            raise AirflowException("this task was killed while it followed an adopted driver")
        if attempt is None:
            self._wait_if_stopped(launching)
            launching.still_ours()
            launching.end("lost", None)
            self._say(launching.summary())
            raise AirflowException(
                "the adopted driver's heartbeat stands still: it is counted as lost, and the next try goes on from its latest checkpoint"
            )
        launching.wait_for_process()
        return self._ended(launching, 0 if attempt.how == "finished" else attempt.exit_code or 1, None)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _ended(self, launching: Launching, exit_code: int | None, failure: BaseException | None) -> dict[str, Any]:
        """What the driver's exit means for the task: the table of exit codes in the documentation."""
        if failure is not None and exit_code in (None, 0):
            exit_code = 1
        if exit_code != 0:
            self._wait_if_stopped(launching)
        launching.still_ours()
        if failure is not None and not isinstance(failure, AirflowException):
            raise failure  # a tracker may have lost sight of a driver that lives: the next try looks
        attempt = launching.attempt()
        launching.metrics.tell(launching.state)  # the last that happened between two looks of whoever followed
        if failure is None and exit_code == 0:
            return self._succeed(launching, attempt)
        if exit_code not in (ExitCode.REFUSED, ExitCode.OVER) or (attempt and attempt.how == "finished"):
            launching.end("failed", exit_code)
        if attempt:
            self._say(launching.summary())
        if exit_code == ExitCode.REFUSED and (refusal := self._refusal(launching)):
            raise AirflowFailException(refusal)
        if exit_code == ExitCode.OVER:
            raise AirflowException(
                "the driver ended because it was replaced, stopped or suspended (exit code 79); the next try looks again"
            )
        raise failure or AirflowException(
            f"the driver ended {attempt.how if attempt else 'before it attached'}, exit code {exit_code}"
        )

    def _wait_if_stopped(self, launching: Launching) -> None:
        """By the journal: not every cluster hands on the driver's exit code, and one that is killed at the end has another."""
        if stopped(launching):
            self._say(launching.summary())
            self._wait_suspended(launching)

    def _succeed(self, launching: Launching, attempt: AttemptRecord | None) -> dict[str, Any]:
        if attempt is None:
            for line in messages.not_attached():
                self.log.warning(line)
            return self._result(launching)
        if attempt.how is None:
            launching.end("failed", 0)
            self._say(launching.summary())
            raise AirflowException(
                "the driver left with exit code 0 inside `with CheckpointedJob()`: nothing was finished"
            )
        if attempt.how != "finished":
            self._say(launching.summary())
            raise AirflowException(
                f"attempt {attempt.epoch} ended {attempt.how}, though its script left with exit code 0"
            )
        return self._finished(launching)

    def _finished(self, launching: Launching) -> dict[str, Any]:
        """This try or one before it saw the run finish; what ends with the run goes now."""
        last = launching.state.restore_point()
        self._say(launching.summary())
        self._say(launching.clean_up())
        return {**self._result(launching), "checkpoint": str(last) if last else None}

    def _result(self, launching: Launching) -> dict[str, Any]:
        state = launching.state
        run = state.run(launching.wanted.token.run)
        launches = {one.number for one in state.launches if one.spec.run == launching.wanted.token.run}
        attempts = sum(one.launch in launches for one in state.attempts)
        return {
            "job": state.job,
            "run": launching.wanted.token.run,
            "attempts": attempts,
            "checkpoint": None,
            "ended": run.how if run else None,
        }

    def _refusal(self, launching: Launching) -> str | None:
        """What the driver left for us, or printed if it could not; nothing if the exit code was the script's own."""
        assert launching.launch is not None
        beat = read_beat(launching.store, launching.keys.driver_beat(launching.launch.number))
        if beat and beat.refused:
            return f"{beat.refused.text}  [{beat.refused.code}]"
        return self._hook.refusal if isinstance(self._hook, CheckpointedSparkSubmitHook) else None

    def on_kill(self) -> None:
        """Tell the driver through the journal, which reaches one on a lost host too; then what the parent does."""
        self._killed.set()
        if self._launching is not None:
            with contextlib.suppress(CheckpointError):
                self._launching.request_stop("the task was killed")
        if self._hook is not None:  # a hook looks its connection up, for which there is no time any more
            super().on_kill()

    def _say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.log.info("%s", line)


def _refuse_later(**options: Any) -> None:
    for name, value in options.items():
        if value:
            raise NotSupportedYet(f"{name}={value!r}: this version does not have it; leave it out")
