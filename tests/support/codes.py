"""Every code of the package and what it means: errors carry theirs, log lines have theirs beside their text. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.errors import all_errors, meaning
from airflow_checkpoint_provider.hooks import connections  # noqa: F401 - defines two of the errors
from airflow_checkpoint_provider.text import (
    deferral,
    health,
    launch_messages,
    loop_messages,
    manual_restore,
    messages,
    out_of_memory,
    query_messages,
    restore_age,
    restore_story,
    sink_messages,
    source_messages,
    spark_output,
    state_messages,
    summary_table,
    tries,
)

ERRORS = [(error.code, meaning(error)) for error in all_errors()]
TEXTS = (
    deferral,
    health,
    launch_messages,
    loop_messages,
    manual_restore,
    messages,
    out_of_memory,
    query_messages,
    restore_age,
    restore_story,
    sink_messages,
    source_messages,
    spark_output,
    state_messages,
    summary_table,
    tries,
)
LINES = [line for module in TEXTS for line in module.CODES.items()]
CODES = dict(sorted([*ERRORS, *LINES]))
