"""End the attempt of a job: finish its run, fail it, or refuse a retry. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.assignment import Allowed, split_allowed, undecided
from airflow_checkpoint_provider.coordinator.oom_kills import OomKills
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointFailed, NonRestoredState, WrongUse
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.wording import run_start
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.damage import damage_of
from airflow_checkpoint_provider.spark.attempt.memory import cause_of
from airflow_checkpoint_provider.spark.attempt.settings import Launched, script
from airflow_checkpoint_provider.spark.attempt.start import tell_task
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.loops.loops import Loops
from airflow_checkpoint_provider.spark.process.exits import exit_by
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.timer import CheckpointTimer
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.sinks.surplus import Surplus
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import query_messages, sink_messages, state_messages

PAUSE = 0.2  # seconds between two polls for a gated checkpoint
LAST_TRIES = 2  # at the last checkpoint of a run
STOPPED = "spark.stop() was called inside `with CheckpointedJob()`: call it after the block"
INTERRUPTED = 128 + signal.SIGINT  # as a shell reports it


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of one attempt, when its script leaves ``with``. ``launched`` is None for a script without Airflow."""

    spark: SparkSession
    attempt: Attempt
    states: States
    registered: Registered
    checkpointer: Checkpointer
    queries: Queries
    sinks: Sinks
    loops: Loops
    commits: Commits
    timer: CheckpointTimer
    launched: Launched | None
    allow_non_restored_state: Allowed
    kills: OomKills

    @property
    def _session_stopped(self) -> bool:
        return self.spark.sparkContext._jsc is None

    def finish(self) -> None:
        """Give every pending checkpoint its outcome, save changed states, and end the attempt as *finished*.

        Only a barrier can tell whether a registered object changed, so a barrier runs if objects are registered. Raises
        ``NonRestoredState`` before the last checkpoint.
        """
        if self._session_stopped:
            raise WrongUse(STOPPED)
        self.queries.wait()
        self.timer.end()
        self.queries.end()
        self.checkpointer.wait()
        self.attempt.writer.check_not_fenced()  # this also reads the new requests
        self.settle_states()
        self._drop_queries_in_no_checkpoint()
        self._take_surplus_out()
        self._take_last_checkpoints()
        self._await_gate()
        self.commits.wait()
        self.checkpointer.close()
        self.attempt.writer.check_not_fenced()
        self.checkpointer.protection.enforce_limit()
        self.checkpointer.notify_last()
        self.attempt.end.write("finished", ExitCode.FINISHED)

    def settle_states(self) -> None:
        """Decide what becomes of each state, and store the frames.

        Raises ``NonRestoredState`` and ``ItemsChanged`` before anything is dropped or stored.
        """
        new = self.states.new(self.registered.hooks())
        self.loops.waiting.refuse_open()
        self.loops.names.refuse_wrong(self.states.unclaimed_of_earlier_runs(), new)
        self.loops.waiting.say_open()
        self._keep_or_drop_unclaimed()
        self.loops.save("end", ended=True)

    def _keep_or_drop_unclaimed(self) -> None:
        """Keep the restored states that the script did not use, or drop those that may be dropped. Log both.

        A value that no finished attempt has set is dropped, too, unless the job says that it is kept.
        """
        self._refuse_left_out_sinks()
        self._leave_out_turns()
        unfinished = undecided(self.states.unfinished_values(), self.allow_non_restored_state)
        self._drop(unfinished, state_messages.unfinished_left_behind)
        in_use = self.loops.names.in_use()
        unclaimed = {state.uid: state for state in self.states.unclaimed() if state.uid not in in_use}
        dropped, kept = split_allowed(unclaimed, self.allow_non_restored_state)
        self._drop(dropped, state_messages.left_behind)
        if kept:
            say(state_messages.handed_on([unclaimed[uid] for uid in kept]))
        self.loops.names.say_left()

    def _drop_queries_in_no_checkpoint(self) -> None:
        """Drop queries that only the journal knows, as the job says: the last checkpoint would hold them where they stand."""
        unknown = self.queries.not_started() - self.states.snapshots.keys()
        if dropped := split_allowed(sorted(unknown), self.allow_non_restored_state)[0]:
            say(query_messages.dropped(dropped))
            self.states.dropped.update(dropped)

    def _leave_out_turns(self) -> None:
        """Let the turns of attempts that did not finish count no longer, if the script has not come to their loop: values and frames
        follow the script. Keep those that the job says are kept.
        """
        uids = [state.uid for state in self.loops.waiting.states()]
        dropped, _ = split_allowed(uids, self.allow_non_restored_state)
        self.loops.waiting.leave_out([*dropped, *undecided(uids, self.allow_non_restored_state)])

    def _refuse_left_out_sinks(self) -> None:
        """Raise ``NonRestoredState`` if the script does not open a sink for which the restore point holds uncommitted rows."""
        dropped, kept = split_allowed(left := self.sinks.left_out(), self.allow_non_restored_state)
        if kept:
            raise NonRestoredState(sink_messages.left_out([left[uid] for uid in kept]), uid=kept[0])
        self._drop(dropped, state_messages.left_behind)

    def _take_surplus_out(self) -> None:
        """Take out of sinks what earlier attempts of this run have written and its script has not."""
        kept = [state.loop for state in self.loops.waiting.states() if state.loop]
        journal = self.attempt.journal.state
        again = run_start(journal)
        Surplus(self.sinks, self.states, journal.sinks, kept, self.allow_non_restored_state, again).take_out()

    def _drop(self, uids: Sequence[str], line: Callable[[Sequence[StateSnapshot]], str]) -> None:
        if uids:
            say(line([self.states.snapshots[uid] for uid in uids]))
            self.states.drop(uids)

    def _take_last_checkpoints(self) -> None:
        """Take checkpoints until every state is saved and every request is served, or a checkpoint failed."""
        due = bool(self.registered or self.states.claimed_queries)
        while True:
            if due or self.states.changed() or self.sinks.unsaved or self.checkpointer.requested():
                self._take_last_checkpoint()
            due = False
            self.checkpointer.savepoints.wait_begun()
            self.checkpointer.gated_checkpoints.wait(self.checkpointer.requested)
            if not self.checkpointer.requested() or self.checkpointer.protection.failures:
                return

    def _await_gate(self) -> None:
        """Wait until a finalized gated checkpoint has published what gated sinks hold, if the state ends with the run.

        Raises ``CheckpointFailed`` after the timeout of a checkpoint: the state stays, and a retry waits again.
        """
        if not self.attempt.journal.state.of_one_run or not (uids := self.sinks.unpublished()):
            return
        timeout_s = self.checkpointer.timeout_s
        say(sink_messages.gate_awaited(uids, timeout_s))
        deadline = time.monotonic() + timeout_s
        while self.sinks.unpublished():
            if time.monotonic() > deadline:
                raise CheckpointFailed(
                    f"no gated checkpoint has published the rows of {', '.join(uids)} within {timeout_s:g} s, so the run is not finished."
                    " They are kept: finalize a gated checkpoint while a retry waits for it"
                )
            self._take_last_checkpoints()
            time.sleep(PAUSE)

    def _take_last_checkpoint(self) -> None:
        if not any(self.checkpointer.checkpoint("end", wait=True) for _ in range(LAST_TRIES)):
            raise CheckpointFailed(
                "the last checkpoint is not completed, so the run is not finished. A retry continues from the checkpoint before it"
            )

    def fail(self, error: BaseException | None) -> None:
        """End the attempt as *failed*. Under a task, raise ``SystemExit`` with code 3 if no retry can help.

        Raise ``Damaged`` from ``error`` if a damaged file of a checkpoint has caused it.
        """
        self.attempt.leaving.if_begun()
        if self._session_stopped and not isinstance(error, WrongUse):
            say(f"{STOPPED}. The error below may only be its effect")
        else:
            self.timer.end()
            self.queries.end()
        self.checkpointer.close()
        damage = damage_of(error, self.attempt, self.states.complete_records())
        cause = damage or error
        self.attempt.end.failed(exit_code(cause), cause_of(error, self.spark, self.kills))
        self.checkpointer.close_objects()
        if isinstance(cause, CheckpointError):
            refuse_retry(cause, self.launched)
        if damage:
            raise damage from error


def refuse_retry(error: CheckpointError, launched: Launched | None) -> None:
    """Tell the task about an error that no retry can mend, and raise ``SystemExit`` with code 3.

    Return if a retry may help. Return also without a task: the script may catch the error. A script that does not ends with code 3, too.
    """
    if not error.permanent:
        return
    if launched is None:
        if script():  # a notebook or a REPL goes on
            exit_by(error, ExitCode.REFUSED)
        return
    traceback.print_exception(error)
    with contextlib.suppress(CheckpointError):
        tell_task(launched.store, Keys(launched.prefix), launched.number, error)
    raise SystemExit(int(ExitCode.REFUSED))


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of a driver whose script ends with ``error``."""
    if isinstance(error, CheckpointError):
        return ExitCode.REFUSED if error.permanent else ExitCode.FAILED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    code = error.code if isinstance(error, SystemExit) else None
    return code & 0xFF if isinstance(code, int) else ExitCode.FAILED
