"""Which errors end a task without retry. Runs in Airflow (worker)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.errors import CheckpointError


@contextlib.contextmanager
def failing_for_good() -> Iterator[None]:
    """What no retry can mend fails the task without one."""
    try:
        yield
    except CheckpointError as error:
        if error.permanent:
            raise AirflowFailException(str(error)) from error
        raise
