"""The verb that compares a new script with a checkpoint. Runs anywhere where the script can run."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from airflow_checkpoint_provider.cli import LIMIT
from airflow_checkpoint_provider.cli.locate import newest
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.preflight import checkpoint_of
from airflow_checkpoint_provider.coordinator.restore import open_pointer
from airflow_checkpoint_provider.errors import PreflightFailed, Refused
from airflow_checkpoint_provider.protocol.keys import pointer_of
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest, PreflightResult, QueryFit
from airflow_checkpoint_provider.storage import Store

STDERR = 2  # the file of this process, which its child inherits
COMPARED = ("QUERY", "FITS", "DIFFERS")


def preflight(store: Store, job: str, source: str, command: Sequence[str]) -> Report:
    """Run ``command``, whose driver compares its queries with a checkpoint. Its output goes to stderr.

    Raises ``CheckpointNotFound``, and ``PreflightFailed`` if the checkpoint holds no query, or the driver did not come to the end of
    its ``with`` block.
    """
    history = newest(store, job, LIMIT)
    pointer = checkpoint_of(open_history(store, history.keys.prefix), source)
    _refuse_without_query(store, job, pointer)  # before the script runs: what it writes itself is written
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        how = _run(command, PreflightRequest(store.uri, history.keys.prefix, source, str(answer)))
        if not answer.exists():
            raise PreflightFailed(
                f"`{shlex.join(command)}` {how} before the end of its `with CheckpointedJob()` block; its output says why. The job was not"
                " touched"
            )
        return _report(PreflightResult.parse(answer.read_text()))


def _refuse_without_query(store: Store, job: str, pointer: str) -> None:
    """Raise ``PreflightFailed`` if there is nothing to compare."""
    states = open_pointer(pointer_of(pointer), store).seal.states.values()
    if not any(state.query for state in states):
        raise PreflightFailed(
            f"{pointer} of {job} holds no streaming query, so nothing can be compared. The script was not started. A preflight compares"
            " queries only: whether a stage is reused is decided when the job runs"
        )


def _run(command: Sequence[str], request: PreflightRequest) -> str:
    """Run a command until it ends, and return how it did. Its output goes to stderr, because stdout is for the table."""
    try:
        done = subprocess.run(command, env={**os.environ, **request.to_environment()}, stdout=STDERR, check=False)
    except OSError as error:
        return f"did not start ({error.strerror}), so it ended"
    return f"ended with exit code {done.returncode}"


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
