"""Log lines about a launch, and about the cluster where its driver runs. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_checkpoint_provider.coordinator.older_runs import OlderRun
from airflow_checkpoint_provider.errors import CheckpointError, printable
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import restore, title
from airflow_checkpoint_provider.text.units import (
    coded,
    day_and_time,
    headline,
    labelled,
    plural,
    some,
)

DOCS = "see the README of airflow-checkpoint-provider"
REFUSAL = "REFUSED: "

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP114": "Old runs of the job were cleaned up: checkpoints were deleted, or histories closed.",
    "CKP117": "Airflow or its Spark provider is newer than the releases with which this package was tried. The task continues.",
    "CKP501": "The application did not open a CheckpointedJob, so a retry starts from zero.",
    "CKP503": "The command spark-submit has ended, but not its application on YARN. The task follows the driver.",
    "CKP504": "The application on YARN could not be killed. Its driver is asked to stop through the journal.",
    "CKP505": "The operator that has submitted a driver has failed, but not the driver. The task follows it.",
    "CKP520": "A job on Kubernetes has its checkpoints in a folder. It must be one volume for Airflow, driver and executors.",
    "CKP521": "YARN has forgotten the application: its resource manager was restarted without its state. The next try continues.",
    "CKP522": "The submit ended before its driver attached. The application is killed, and the next try submits again.",
    "CKP523": "The operator that has submitted a driver skips the task, or fails it without retry.",
}


# -- the launch --------------------------------------------------------------------------------------------------------


def untried(newer: Mapping[str, str]) -> list[str]:
    """Say which installed parts are newer than the newest release that was tried; empty if none is."""
    if not newer:
        return []
    listed = ", ".join(f"{part} (the newest tried: {tried})" for part, tried in newer.items())
    return [coded(f"This package was not tried with {listed}. The task continues", "CKP117")]


def finished(state: State, run: str) -> list[str]:
    """Say that the run had finished before this try; its worker was lost afterwards."""
    record = state.run(run)
    attempt = state.attempt_of(record.launch) if record else None
    at = day_and_time(record.ended_at) if record else ""
    which = f" (attempt {attempt.epoch})" if attempt else ""
    text = f"{title(state, run)}: finished at {at}{which}, and its worker was lost afterwards. Nothing was submitted."
    advice = "To run it again, clear this task."
    return [coded(f"{text} {advice}", "CKP111")]


def superseded(state: State, run: str) -> str:
    """Say that a later try has taken over. The code comes with the error."""
    record = state.run(run)
    return wording.superseded(state, run, state.launch(record.launch) if record else None)


def refused(what: str, error: CheckpointError) -> list[str]:
    """Return a refusal of ``what``, e.g. ``flights_etl.delays, run x``."""
    advice = "a retry may succeed" if not error.permanent else "no retry can help, so the task fails without retry"
    return [
        headline(f"REFUSED {what}", error.code),
        labelled("because", error.message),
        labelled("effect", f"nothing was changed, a running attempt was not touched; {advice}"),
    ]


def refusal(error: CheckpointError) -> str:
    """Return a driver's last line for its task. It is the only way if the driver cannot reach the store."""
    return f"{REFUSAL}{' '.join(str(error).split())}"


def refusal_in(line: str) -> str | None:
    """Return the text that ``refusal`` marked, or None if the line is no refusal."""
    return line.removeprefix(REFUSAL) if line.startswith(REFUSAL) else None


def suspended(state: State) -> list[str]:
    """Say that a job waits to be resumed, and how to resume it."""
    text = f"{title(state)} is suspended {wording.suspension(state)}. Waiting. Resume: {restore(state, 'latest')}"
    return [coded(text, "CKP130")]


def not_attached() -> list[str]:
    """Say that the application ran without checkpoints, and what to add."""
    text = f"This application never opened a CheckpointedJob: a retry starts from zero. Three lines to add ({DOCS}):"
    return [
        coded(text, "CKP501"),
        "    from airflow_checkpoint_provider.spark import CheckpointedJob",
        "    with CheckpointedJob() as job:",
        '        df = job.stage("a name", df)',
    ]


def older_runs(job: str, done: Sequence[OlderRun]) -> list[str]:
    """Return one line for a task's log; none if there was nothing to do."""
    emptied = [history for history in done if history.deleted or history.leftovers]
    shut = [history.run for history in done if history.closed]
    failed = [history for history in done if history.error]
    parts = []
    if emptied:
        checkpoints = plural(sum(len(history.deleted) for history in emptied), "checkpoint")
        leftovers = plural(sum(history.leftovers for history in emptied), "leftover")
        parts.append(f"deleted {checkpoints} and {leftovers} of {some([history.run for history in emptied], 3)}")
    if shut:
        parts.append(f"closed {some(shut, 3)}")
    if failed:
        runs = some([history.run or "any" for history in failed], 3)
        parts.append(f"could not clean up {runs}, the next run tries again ({failed[0].error})")
    return [coded(f"{job}, older runs: {'; '.join(parts)}", "CKP114")] if parts else []


# -- the cluster -------------------------------------------------------------------------------------------------------


def folder_on_kubernetes(root: str) -> str:
    """Say what a folder for checkpoints must be on Kubernetes. Nobody can see from here whether it is."""
    text = (
        f"The checkpoints lie in the folder {root.removeprefix('file://')}, and pods share no folder by themselves. It must be one"
        " volume, mounted under this path in the pods of driver and executors and where Airflow's workers run. Otherwise the"
        " task does not see its driver, and a retry starts from zero"
    )
    return coded(printable(text), "CKP520")


def goes_on_alone() -> str:
    """Say that the task follows a driver whose service has failed to say how it ends."""
    text = "the operator that has submitted the driver has failed, but the driver still runs. This task follows it through the journal."
    return coded(text, "CKP505")


def ended_by_operator(driver: str, failure: Exception, *, skips: bool) -> str:
    """Say that no retry comes, because the operator that has submitted the driver wants none, and how the ``driver`` ended."""
    does = "skips the task" if skips else "fails the task without retry"
    text = f"the operator that has submitted the driver {does} ({failure}); {driver}. No retry follows: to go on, clear the task"
    return coded(printable(text), "CKP523")


def goes_on_alone_on_yarn(application: str | None) -> str:
    """Say that the task follows a driver whose ``spark-submit`` is gone."""
    text = f"spark-submit has ended, but {application or 'the application'} may still run on YARN. This task follows its driver"
    return coded(f"{text} through the journal.", "CKP503")


def forgotten(application: str | None) -> str:
    """Say why YARN does not know an application that it has accepted."""
    text = (
        f"YARN does not know {application or 'the application'} any more: its resource manager was started without the state of the one"
        " before, and ends the application. The next try continues from the newest checkpoint. With"
        " yarn.resourcemanager.recovery.enabled, applications outlive a restart"
    )
    return coded(printable(text), "CKP521")


def not_followed(error: CheckpointError) -> str:
    """Say that a task sees no more checkpoints of its driver."""
    return f"This task still waits for its driver, but logs and measures its checkpoints no more: {error}"


def not_awaited(application: str) -> str:
    """Say that an application is killed because nobody waits for it."""
    text = f"spark-submit has ended before the driver of {application} attached, so nobody waits for it on YARN. This task kills it"
    return coded(printable(f"{text}; the next try submits again"), "CKP522")


def not_killed(application: str) -> str:
    """Say why an application was not killed, and what does it."""
    text = (
        f"{application} was not killed: the Spark connection has no yarn_resourcemanager_webapp_address, and there is no command `yarn`"
        " on the PATH. Its driver was asked through the journal to stop. If it does not answer, kill the application in YARN."
    )
    return coded(text, "CKP504")
