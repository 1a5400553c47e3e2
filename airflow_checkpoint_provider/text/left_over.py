"""What is said, at the end of a run, of restored state that nobody asked for. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.protocol.metadata import StateSnapshot, kind_in_words
from airflow_checkpoint_provider.protocol.wording import coded
from airflow_checkpoint_provider.text.units import size, some


def handed_on(states: Sequence[StateSnapshot]) -> str:
    """Restored, not asked for, and not allowed to be left behind: the next checkpoints hold it, too."""
    uids = ", ".join(f'"{state.uid}"' for state in states)
    return coded(
        f"nobody asked for {_named(states)} in this run: handed on as restored. To leave that behind, at the end of a run:"
        f" allow_non_restored_state=[{uids}]",
        "CKP426",
    )


def left_behind(states: Sequence[StateSnapshot]) -> str:
    """As allowed."""
    said = "as allow_non_restored_state says; checkpoints from here on do not hold that"
    return coded(f"nobody asked for {_named(states)} in this run: left behind, {said}", "CKP427")


def _named(states: Sequence[StateSnapshot]) -> str:
    return some(
        [
            f"{kind_in_words(state.kind)} '{state.uid}'" + (f" ({size(state.bytes)})" if state.bytes else "")
            for state in states
        ]
    )
