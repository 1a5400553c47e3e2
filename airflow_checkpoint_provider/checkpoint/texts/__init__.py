"""All texts that people read, as pure functions from state to lines: no I/O, no clock. Runs anywhere.

UTC; the name before the number; cause, effect, what to do. Each text ends in a code (``codes``).
"""

from airflow_checkpoint_provider.checkpoint.texts.closed import closed, swept
from airflow_checkpoint_provider.checkpoint.texts.going_back import left_by_restore, restored
from airflow_checkpoint_provider.checkpoint.texts.left_over import handed_on, left_behind
from airflow_checkpoint_provider.checkpoint.texts.lifecycle import acknowledged, request, triggered, will_not_complete
from airflow_checkpoint_provider.checkpoint.texts.lines import (
    aborted,
    application_line,
    checkpoint_line,
    checkpoint_lines,
    cleared_unchanged,
    deleted_line,
    fenced,
    finished,
    gate_reached,
    gates_awaited,
    not_attached,
    not_protected,
    outcome_known,
    refusal,
    refusal_in,
    refused,
    stage_recomputed,
    stage_reused,
    stage_sorted,
    superseded,
    suspended,
)
from airflow_checkpoint_provider.checkpoint.texts.numbers import SPREAD, spreads, statistics
from airflow_checkpoint_provider.checkpoint.texts.story import (
    Seen,
    driver_says,
    launch_story,
    looking,
    restore_story,
    retold,
)
from airflow_checkpoint_provider.checkpoint.texts.summary import summarize, summary

__all__ = [
    "SPREAD",
    "Seen",
    "aborted",
    "acknowledged",
    "application_line",
    "checkpoint_line",
    "checkpoint_lines",
    "cleared_unchanged",
    "closed",
    "deleted_line",
    "driver_says",
    "fenced",
    "finished",
    "gate_reached",
    "gates_awaited",
    "handed_on",
    "launch_story",
    "left_behind",
    "left_by_restore",
    "looking",
    "not_attached",
    "not_protected",
    "outcome_known",
    "refusal",
    "refusal_in",
    "refused",
    "request",
    "restore_story",
    "restored",
    "retold",
    "spreads",
    "stage_recomputed",
    "stage_reused",
    "stage_sorted",
    "statistics",
    "summarize",
    "summary",
    "superseded",
    "suspended",
    "swept",
    "triggered",
    "will_not_complete",
]
