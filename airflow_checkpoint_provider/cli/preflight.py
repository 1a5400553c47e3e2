"""The verb that compares a new script with a checkpoint. Runs anywhere where the script can run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from airflow_checkpoint_provider.cli.change import Approval, confirm
from airflow_checkpoint_provider.cli.locate import find_history
from airflow_checkpoint_provider.cli.output import Report, write_lines
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.preflight import checkpoint_of, refuse_without_query
from airflow_checkpoint_provider.coordinator.restore import open_pointer
from airflow_checkpoint_provider.errors import InvalidConfig, PreflightFailed, Refused
from airflow_checkpoint_provider.hooks.spark_confs import (
    DEPLOY_MODE,
    confs_in,
    program_in,
    split_options,
    submitted_confs,
)
from airflow_checkpoint_provider.protocol.keys import pointer_of
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest, PreflightResult, QueryFit
from airflow_checkpoint_provider.storage import Store

STDERR = 2  # the file of this process, which its child inherits
COMPARED = ("QUERY", "FITS", "DIFFERS")


def preflight(
    store: Store, job: str, source: str, command: Sequence[str], approval: Approval, item: str | None = None
) -> Report:
    """Say what runs, ask, and run ``command``, whose driver compares its queries with a checkpoint. Its output goes to stderr.

    Raises ``CheckpointNotFound``, ``NothingToCompare`` if the checkpoint holds no query, ``InvalidConfig`` for a driver in a cluster, and
    ``PreflightFailed`` if the driver has compared nothing.
    """
    command = _in_client_mode(command)
    history, _ = find_history(store, job, None, item)
    pointer = checkpoint_of(open_history(store, history.keys.prefix), source)
    refuse_without_query(pointer, open_pointer(pointer_of(pointer), store).seal)
    _confirm(job, pointer, command, approval)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        code = _run(command, PreflightRequest(store.uri, history.keys.prefix, source, str(answer)))
        if not answer.exists():
            raise PreflightFailed(
                f"`{shlex.join(command)}` ended with exit code {code} before it had compared the queries of its `with CheckpointedJob()` block;"
                " its output says why. The job was not touched"
            )
        return _report(PreflightResult.parse(answer.read_text()))


def _in_client_mode(command: Sequence[str]) -> list[str]:
    """Return the command, whose driver runs on this host.

    Raise ``InvalidConfig`` if the driver would run in a cluster: there it would not learn that this is a preflight, and would run the job.
    """
    at = program_in(command)
    options, script = ([], list(command)) if at is None else split_options(command[at + 1 :])
    given = dict(options)
    confs = submitted_confs(confs_in(options), given.get("--properties-file"), os.environ)
    named = given.get("--deploy-mode") or confs.get(DEPLOY_MODE) or os.environ.get("DEPLOY_MODE")
    if named == "cluster" or (
        at is None and re.search(r"(--deploy-mode|deployMode)[\s='\"]+cluster", " ".join(script))
    ):
        raise InvalidConfig(
            "the driver would run in a cluster, where it does not learn that this is a preflight: it would run the job. Nothing was"
            " started. Write --deploy-mode client before the script"
        )
    if at is None or "--deploy-mode" in given:
        return list(command)
    # Perhaps a default that is not found here says otherwise
    return [*command[: at + 1], "--deploy-mode", "client", *command[at + 1 :]]


def _confirm(job: str, pointer: str, command: Sequence[str], approval: Approval) -> None:
    """Say what a preflight runs, and ask."""
    lines = [
        f"PREFLIGHT of {job}: compares {pointer} with the queries of `{shlex.join(command)}`",
        "the code of the script RUNS on this host, until it has started each query of the checkpoint. Writes through Spark are refused",
        "everything that it does without Spark happens: files that Python writes, calls of an API or a database, mails",
    ]
    if approval.yes:
        write_lines(lines, sys.stderr)
    confirm(job, lines, approval, "Not a terminal: the script's code runs. Confirm with --yes")


def _run(command: Sequence[str], request: PreflightRequest) -> int:
    """Run a command until it ends, and return its exit code. Its output goes to stderr, because stdout is for the table. Raises
    ``PreflightFailed`` if it cannot be started."""
    try:
        return subprocess.run(
            command, env={**os.environ, **request.to_environment()}, stdout=STDERR, check=False
        ).returncode
    except OSError as error:
        raise PreflightFailed(
            f"`{shlex.join(command)}` could not be started: {error.strerror}. The job was not touched"
        ) from None


def _report(result: PreflightResult) -> Report:
    fits = result.queries
    rows = [(fit.query, _verdict(fit), fit.summary) for fit in fits]
    refused = [Refused(f"query '{fit.query}' does not fit {result.checkpoint}") for fit in fits if fit.differences]
    unknown = [
        PreflightFailed(f"query '{fit.query}' could not be compared: {fit.unknown}") for fit in fits if fit.unknown
    ]
    return Report(COMPARED, rows, asdict(result), errors=(*refused, *unknown))


def _verdict(fit: QueryFit) -> str:
    if fit.differences:
        return "no"
    return "unknown" if fit.unknown else "ok"
