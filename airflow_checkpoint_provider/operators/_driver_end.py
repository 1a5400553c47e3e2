"""The end of a driver, as its task tells it: the task's XCom, or the error that decides about a retry. Runs in Airflow (worker)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

from airflow_checkpoint_provider.coordinator.liveness import RefusedStart, read_beat
from airflow_checkpoint_provider.errors import Fenced, JobAlreadyRunning, JobSuspended, printable
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.operators import _memory, _xcom
from airflow_checkpoint_provider.operators._launched import LaunchedDriver
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.text import launch_messages
from airflow_checkpoint_provider.text.units import driver_ended

OVER = {error.code for error in (Fenced, JobAlreadyRunning, JobSuspended)}
"""The codes of refusals with which a driver ends with exit code 79."""

FINAL = (AirflowSkipException, AirflowFailException)
"""What an operator raises if no retry is to come."""


class Log(Protocol):
    """The log of the task."""

    def warning(self, line: str, /) -> object: ...


class Submission(Protocol):
    """What the process that has submitted a driver knows of it, besides the journal."""

    refusal: str | None
    """Why the driver refused to run, if it has printed that."""

    def diagnostics(self) -> str:
        """Return what the cluster manager says about the end of the driver; empty if it cannot be asked."""

    def has_ended(self) -> bool:
        """Return whether the cluster manager says that the driver has ended, so it cannot go on without its task."""


@dataclass(frozen=True)
class DriverEnd:
    """The end of the driver of ``launch``. ``submission`` is None in another process than that of the submit.

    ``in_cluster``: the driver runs in a cluster, so the exit code of ``spark-submit`` is not the driver's.
    """

    launch: LaunchedDriver
    output: SparkOutput
    log: Log
    submission: Submission | None
    in_cluster: bool

    def of_followed(self, attempt: AttemptRecord | None) -> dict[str, Any]:
        """Return the task's XCom, or raise the error, for a driver that was followed by the journal; None: its heartbeat has stopped."""
        launch = self.launch
        if attempt is None:
            self._wait_if_stopped()
            launch.raise_if_replaced()
            launch.record_end("lost", None, self._cause(None, None, None))
            self.output.log(launch.summary())
            raise AirflowException(
                f"{driver_ended(launch.attempt(), 'lost')}: its heartbeat has stopped. The next try continues from its latest"
                " checkpoint"
            )
        launch.wait_for_process()
        return self.of_exit(0 if attempt.outcome == "finished" else attempt.exit_code or 1, None)

    def of_exit(self, exit_code: int | None, failure: BaseException | None) -> dict[str, Any]:
        """Return the task's XCom, or raise the error for the driver's exit code; the documentation has the table."""
        launch = self.launch
        if failure is not None and exit_code in (None, 0):
            exit_code = 1
        if exit_code != 0:
            self._wait_if_stopped()
        launch.raise_if_replaced()
        if failure is not None and not isinstance(failure, AirflowException) and not self._known_to_have_ended():
            raise failure  # the driver may still run, only its tracking failed: the next try checks
        attempt = launch.attempt()
        if self.in_cluster and exit_code != 0:
            exit_code = self._announced_code(attempt, exit_code)
        launch.metrics.update(launch.state)  # entries since the monitor's last poll
        if failure is None and exit_code == 0:
            return self._succeed(attempt)
        if isinstance(failure, FINAL) and not self._ended_by_us(exit_code):
            self._end_for_good(attempt, exit_code, failure)
        ended_itself = exit_code in (ExitCode.REFUSED, ExitCode.OVER) and attempt and attempt.outcome != "finished"
        if not ended_itself:
            launch.record_end("failed", exit_code, self._cause(attempt, exit_code, failure))
        self._log_failure(attempt, exit_code)
        # In client mode the parent's error says no more, and names a signal by another number than the journal
        raise self._error(exit_code) from (failure if self.in_cluster else None)

    def _ended_by_us(self, exit_code: int | None) -> bool:
        """Return whether the driver ended because this package refused, stopped or replaced it: then the operator does not know why."""
        return exit_code == ExitCode.OVER or (exit_code == ExitCode.REFUSED and bool(self._refusal()))

    def _end_for_good(
        self, attempt: AttemptRecord | None, exit_code: int | None, failure: AirflowException
    ) -> NoReturn:
        """Raise what the operator raised to skip the task, or to fail it without retry. No try follows a driver that attaches later, so it
        is told to stop. A skip does not undo a run that has finished."""
        skips = isinstance(failure, AirflowSkipException)
        if skips and attempt and attempt.outcome == "finished":
            self.finish()
        else:
            self.launch.record_end("failed", exit_code, self._cause(attempt, exit_code, failure))
            self.launch.request_stop("its operator has ended the task for good")
            self._log_failure(attempt, exit_code)
        driver = driver_ended(self.launch.attempt(), "failed", exit_code)
        self.output.log([launch_messages.ended_by_operator(driver, failure, skips=skips)])
        raise failure

    def _error(self, exit_code: int | None) -> AirflowException:
        if exit_code == ExitCode.REFUSED and (refusal := self._refusal()):
            return AirflowFailException(refusal)
        if exit_code == ExitCode.OVER:
            return AirflowException(
                "the driver ended because it was replaced, stopped or suspended (exit code 79). The next try checks again"
            )
        return AirflowException(driver_ended(self.launch.attempt(), "failed", exit_code))

    def _log_failure(self, attempt: AttemptRecord | None, exit_code: int | None) -> None:
        """Log the last lines of Spark again, unless the driver ended on request; then the summary of a driver that attached."""
        if exit_code != ExitCode.OVER:
            self.output.log_last_lines()
        if attempt:
            self.output.log(self.launch.summary())

    def _succeed(self, attempt: AttemptRecord | None) -> dict[str, Any]:
        if attempt is None:
            self.launch.record_end("finished", 0)
            for line in launch_messages.not_attached():
                self.log.warning(line)
            return _xcom.of_end(self.launch)
        if attempt.outcome is None:
            self.launch.record_end("failed", 0)
            self._log_failure(attempt, 0)
            raise AirflowException(
                "the driver exited with code 0 inside `with CheckpointedJob()`, so the job is not finished"
            )
        if attempt.outcome != "finished":
            self._log_failure(attempt, 0)
            raise AirflowException(f"{driver_ended(attempt)}, though its script exited with code 0")
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Delete the checkpoints that end with a finished run, and return the task's XCom."""
        last = self.launch.state.restore_point()
        self.output.log(self.launch.summary())
        self.output.log(self.launch.collect_garbage())
        return _xcom.of_end(self.launch, last)

    # -- a job that a savepoint has stopped --------------------------------------------------------------------------

    def _wait_if_stopped(self) -> None:
        """Reschedule this try if a savepoint stopped the job.

        The journal is asked because not every cluster returns the driver's exit code, and a driver that is killed at its end
        has another code.
        """
        if self.launch.record_suspension():
            self.output.log(self.launch.summary())
            self.wait_suspended()

    def wait_suspended(self) -> NoReturn:
        """Reschedule this try without using up a retry. It runs again after 60 s (the heartbeat timeout), in a new process,
        so that its templates are rendered again."""
        self.output.log(launch_messages.suspended(self.launch.state))
        again = datetime.now(UTC) + timedelta(seconds=self.launch.beats.still)
        raise AirflowRescheduleException(again) from None  # type: ignore[no-untyped-call]

    def _cause(self, attempt: AttemptRecord | None, exit_code: int | None, failure: BaseException | None) -> str:
        """Return the memory that the driver ran out of, as its task sees it; empty if it was not memory."""
        if self.in_cluster:
            asked = self.submission.diagnostics() if self.submission else ""
            said = [*self.output.last, str(failure or ""), asked]
            return _memory.cause_in_cluster(attempt, "\n".join(said))
        return _memory.cause_in_client(attempt, exit_code, self.output.last, self.launch.kills)

    # -- what the driver has said ------------------------------------------------------------------------------------

    def _known_to_have_ended(self) -> bool:
        """Return whether the driver has ended. The tracking of another operator raises one error for that and for its own failure."""
        return self.submission is not None and self.submission.has_ended()

    def _announced_code(self, attempt: AttemptRecord | None, code: int | None) -> int | None:
        """Return the exit code that the driver has announced, None if it could not; ``code`` of ``spark-submit`` if no driver began."""
        if attempt is not None:
            return attempt.exit_code
        refused = self._refused_start()
        if refused is None:
            return code
        return ExitCode.OVER if refused.code in OVER else ExitCode.REFUSED

    def _refusal(self) -> str | None:
        """Return why the driver refused to run, from the storage or from its log; None if the exit code was the script's own."""
        if refused := self._refused_start():
            return printable(f"{refused.text}  [{refused.code}]")
        return self.submission.refusal if self.submission else None

    def _refused_start(self) -> RefusedStart | None:
        assert self.launch.record is not None
        beat = read_beat(self.launch.store, self.launch.keys.driver_beat(self.launch.record.number))
        return beat.refusal if beat else None
