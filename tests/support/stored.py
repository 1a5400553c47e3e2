"""What the checkpoints of a history hold. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.state import State


def stored_stages(state: State) -> set[str]:
    """Return the stages that completed checkpoints hold. They are written while the script goes on."""
    return {one.uid for checkpoint in state.retained for one in checkpoint.states if one.kind == "stage"}
