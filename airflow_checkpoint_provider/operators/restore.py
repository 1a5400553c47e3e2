"""A task that fixes where the next attempt of a job starts. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_checkpoint_provider.coordinator.assignment import check_rename
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.restore import RestoreTarget
from airflow_checkpoint_provider.coordinator.savepoint import claim_before_restore
from airflow_checkpoint_provider.coordinator.savepoint_target import CLAIM, NO_CLAIM
from airflow_checkpoint_provider.coordinator.savepoint_target import claim_mode as known_claim_mode
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig
from airflow_checkpoint_provider.hooks.references import known_at_parse, start_in
from airflow_checkpoint_provider.operators._base import failing_for_good
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import Pointer, checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.state import Branch, State
from airflow_checkpoint_provider.text import restore_story

STARTS = ("latest", "run-start", "none")


class RestoreOperator(JobOperator):
    """Goes back, or on, once: what runs is fenced, a suspension lifted, and the next attempt starts from ``restore``.

    It submits nothing; the job's next retry, run or clear does that. What it names is verified before anything changes. A
    retry of this task is the same restore, whatever happened since; a clear restores anew.

    The XCom is ``{"job", "scope", "branch", "next_start"}``.

    :param job: the ``CheckpointedSparkSubmitOperator`` of the same DAG, or a job id: the history that its runs share.
    :param restore: "latest", "run-start" (where the job's newest run began), "none", an id such as "chk-7", a pointer to a
        checkpoint or to a savepoint's directory, or the output of a task that made one. (templated)
    :param claim_mode: "no_claim": a savepoint stays yours. "claim": the job owns a savepoint from elsewhere from now on, and
        deletes it when its ``retention`` keeps it no more.
    :param rename: new uids of states, by those in the checkpoint: ``{"totals": "sums"}``. "latest" and "run-start" keep the
        names that were given before.
    :param checkpoint_conn_id: as of the other tasks about a job.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "restore")

    def __init__(
        self,
        *,
        restore: Any,
        claim_mode: str = NO_CLAIM,
        rename: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.restore, self.claim_mode, self.rename = restore, known_claim_mode(claim_mode), check_rename(rename or {})
        if known_at_parse(restore):
            self._check(start_in(restore, *STARTS))

    def _check(self, where: str) -> None:
        """What can be known when the DAG is parsed. The newest point, and a run's start, may be a savepoint from elsewhere."""
        never = where == "none" or checkpoint_id(where) is not None
        if self.claim_mode == CLAIM and (never or (where not in STARTS and isinstance(pointer_of(where), Pointer))):
            raise InvalidConfig(
                f"claim_mode={CLAIM!r} with restore={where!r}, which is no savepoint from elsewhere: name the directory of one, or"
                " leave claim_mode out"
            )

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            coordinator = self.coordinator(context["ti"])
            state = coordinator.journal.catch_up()
            token = self._token(context["ti"])
            if self._done(coordinator, token):
                self.log.info("nothing to do, this was done before: %s", _stands(state.branch, token))
            elif not state.runs:
                raise CheckpointNotFound(self.why_unknown(coordinator.store, context["ti"]))
            else:
                self._restore(coordinator, state, token)
        branch = coordinator.state.branch
        return {
            "job": state.job, "scope": state.scope, "branch": branch.number,
            "next_start": str(branch.base) if branch.base else None,
        }  # fmt: skip

    def _restore(self, coordinator: Coordinator, state: State, token: Token) -> None:
        going = RestoreTarget(coordinator, start_in(self.restore, *STARTS), state.runs[-1].key)
        reason = f"task {token.owner} of run {token.run}"
        claims = self.claim_mode == CLAIM

        def command(now: State) -> c.Restore:
            going.look(now)
            self.stop_if_killed()
            wanted = going.command(token, token.owner, reason, claim=claims, rename=self.rename)
            return claim_before_restore(coordinator, now, wanted, utc_now())

        coordinator.journal.append(command)
        for line in restore_story.restored(going.state, going.restored, claim=claims, rename=going.names(self.rename)):
            self.log.info("%s", line)

    def _done(self, coordinator: Coordinator, token: Token) -> bool:
        """By this try before it died, or by one before it; where that led to need not be there any more."""
        return token.text in coordinator.state.tokens

    def _token(self, ti: Any) -> Token:
        item = None if ti.map_index is None or ti.map_index < 0 else str(ti.map_index)
        return Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=item, generation=ti.max_tries)


def _stands(branch: Branch, token: Token) -> str:
    """Which restore the next attempt starts by."""
    whose = "this task's" if branch.token == token else f"a later one, of {branch.reason}"
    return f"branch {branch.number} stands, {whose}, which started from {branch.base or 'nothing'} at {branch.at}"
