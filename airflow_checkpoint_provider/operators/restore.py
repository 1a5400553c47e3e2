"""A task that sets where the next attempt of a job starts. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_checkpoint_provider.coordinator.assignment import check_rename
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.restore_target import RestoreTarget
from airflow_checkpoint_provider.coordinator.savepoint import claim_before_restore
from airflow_checkpoint_provider.coordinator.savepoint_target import CLAIM, NO_CLAIM
from airflow_checkpoint_provider.coordinator.savepoint_target import claim_mode as known_claim_mode
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig, printable
from airflow_checkpoint_provider.hooks.references import incarnation_in, item_in, known_at_parse, start_in
from airflow_checkpoint_provider.operators._base import check_flag, failing_for_good, generation_of
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import Pointer, checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.launch_records import Branch
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import manual_restore

STARTS = ("latest", "run-start", "none")


class RestoreOperator(JobOperator):
    """Sets the checkpoint or savepoint from which the next attempt of a job starts.

    It verifies ``restore`` first. Then it fences the running attempt and ends a suspension. It submits nothing: the next retry,
    run or clear of the job does that. A retry of this task does not restore again; a clear does.

    The XCom is ``{"job", "scope", "branch", "next_start"}``.

    :param job: the task of the same DAG that submits the job, or a job id: the history that its runs share.
    :param run: with a job id: the run, if each run has its own history. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param restore: "latest", "run-start" (where the job's newest run started), "none", an id such as "chk-7", a pointer to a
        checkpoint or to a savepoint's directory, or the output of a task that made one. (templated)
    :param claim_mode: "no_claim": you keep the savepoint. "claim": the job owns a savepoint of another history from now on, and
        deletes it when its ``retention`` no longer keeps it.
    :param rename: new uids of states, by their uids in the checkpoint: ``{"totals": "sums"}``. "latest" and "run-start" keep
        earlier renames.
    :param rewind_sink: let the job go back although its sinks hold later rows. Files of a streaming query are moved into a folder of
        the sink, and can be put back: ``checkpoints rewound``. Rows that later runs wrote with ``job.sink`` are deleted. Restore the
        Delta or Iceberg table of a query yourself first. Without ``rewind_sink``, such a restore of a query is refused, and
        ``job.sink`` refuses to open such a sink.
    :param checkpoint_conn_id: as in ``TriggerCheckpointOperator``.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "restore")

    def __init__(
        self,
        *,
        restore: Any,
        claim_mode: str = NO_CLAIM,
        rename: Mapping[str, str] | None = None,
        rewind_sink: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.restore, self.claim_mode, self.rename = restore, known_claim_mode(claim_mode), check_rename(rename or {})
        check_flag("rewind_sink", rewind_sink)
        self.rewind_sink = rewind_sink
        if known_at_parse(restore):
            self._check(start_in(restore, *STARTS))

    def _check(self, where: str) -> None:
        """Raise ``InvalidConfig`` if ``where`` cannot be claimed. "latest" and "run-start" may name a savepoint of another
        history, so they are checked when the task runs."""
        never = where == "none" or checkpoint_id(where) is not None
        if self.claim_mode == CLAIM and (never or (where not in STARTS and isinstance(pointer_of(where), Pointer))):
            raise InvalidConfig(
                f"claim_mode={CLAIM!r} with restore={where!r}, which is not a savepoint from elsewhere: write the directory of one, or"
                " leave claim_mode out"
            )

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            coordinator = self.coordinator(context["ti"])
            state = coordinator.journal.catch_up()
            token = self._token(context)
            if self._done(coordinator, token):
                self.log.info("nothing to do, this task has restored before: %s", _describe_branch(state.branch, token))
            elif not state.runs:
                raise CheckpointNotFound(self.why_unknown(coordinator.store, context["ti"]))
            else:
                self._restore(coordinator, state, token)
        branch = coordinator.state.branch
        return {
            "job": state.job,
            "scope": state.scope,
            **item_in(state),
            "branch": branch.number,
            "next_start": str(branch.base) if branch.base else None,
        }

    def _restore(self, coordinator: Coordinator, state: State, token: Token) -> None:
        where, incarnation = start_in(self.restore, *STARTS), incarnation_in(self.restore)
        target = RestoreTarget(coordinator, where, state.runs[-1].key, incarnation)
        reason = f"task {token.owner} of run {token.run}"
        claims = self.claim_mode == CLAIM

        def command(now: State) -> c.Restore:
            target.verify(now)
            self.stop_if_killed()
            wanted = target.command(
                token, token.owner, reason, claim=claims, rename=self.rename, rewind_sink=self.rewind_sink
            )
            return claim_before_restore(coordinator, now, wanted, utc_now())

        coordinator.journal.append(command)
        names = target.names(self.rename)
        for line in manual_restore.restored(
            target.state,
            target.restored,
            claim=claims,
            rename=names,
            rewind_sink=self.rewind_sink,
            back=target.going_back(names),
        ):
            self.log.info("%s", line)

    def _done(self, coordinator: Coordinator, token: Token) -> bool:
        """Return whether this try or an earlier one has restored; its checkpoint may have been deleted since."""
        return token.text in coordinator.state.tokens

    def _token(self, context: Any) -> Token:
        ti, generation = context["ti"], generation_of(context, self.retries).number
        item = None if ti.map_index is None or ti.map_index < 0 else str(ti.map_index)
        return Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=item, generation=generation)


def _describe_branch(branch: Branch, token: Token) -> str:
    """Return which restore sets the start of the next attempt."""
    author = "this task" if branch.token == token else f"a later restore: {branch.reason}"
    return printable(f"branch {branch.number} was opened at {branch.at} from {branch.base or 'nothing'} by {author}")
