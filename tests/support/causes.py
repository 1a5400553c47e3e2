"""Why a checkpoint was aborted. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.checkpoint_records import AbortCause, Checkpoint


def cause_of(checkpoint: Checkpoint | None) -> AbortCause:
    """Return why a checkpoint was aborted. It must have been."""
    assert checkpoint
    assert checkpoint.abort_cause, f"chk-{checkpoint.id} is {checkpoint.status}"
    return checkpoint.abort_cause
