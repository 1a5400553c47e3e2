"""The retry policy that fails a task whose tries get no further. Runs in Airflow (DAG processor, worker).

Airflow asks a policy in the process of the task, after the try has failed. It does not ask when a worker was lost: the next try that fails
finds the launches of the lost ones in the journal.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Self

from airflow.sdk import RetryAction, RetryDecision, RetryPolicy

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators._task_history import read_history
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from airflow_checkpoint_provider.text import tries as text

log = logging.getLogger(__name__)


class CheckpointRetryPolicy(RetryPolicy):
    """Fails a task early if its tries complete no newer checkpoint, and its queries commit no newer batch; otherwise Airflow's own rule
    decides.

    It is for ``retry_policy=`` of a task that submits a checkpointed job. Airflow lets no policy give more tries than ``retries=``, so write
    a large number there. A try that completes a newer checkpoint or commits a newer batch begins the count anew, and so does a clear of the
    task, and a restore. The journal is counted, so a try whose worker was lost counts, too. A driver that a later try adopts counts once. If
    the journal cannot be read, Airflow's own rule decides, and the log says so (CKP511).

    :param stuck_after: how many tries in a row may get no further: the last of them fails the task. From 1 to 100.
    :param delay: the time until the next try; by default the ``retry_delay=`` of the task.
    """

    def __init__(self, stuck_after: int = 3, delay: timedelta | None = None) -> None:
        if not isinstance(stuck_after, int) or isinstance(stuck_after, bool) or not 1 <= stuck_after <= KEPT_RECORDS:
            raise InvalidConfig(f"stuck_after={stuck_after!r}: write a whole number from 1 to {KEPT_RECORDS}")
        if delay is not None and (not isinstance(delay, timedelta) or delay < timedelta()):
            raise InvalidConfig(f"delay={delay!r}: write a timedelta, e.g. timedelta(minutes=1)")
        self.stuck_after, self.delay = stuck_after, delay

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Decide about a retry. It raises nothing: the error of the task counts more than ours."""
        try:
            return self._decide(context, try_number)
        except Exception as error:  # noqa: BLE001 - a store or a connection raises any error of its client
            log.warning("%s", text.cannot_tell(str(error)))
            return self._default()

    def _decide(self, context: Any, try_number: int) -> RetryDecision:
        if not context:
            raise InvalidConfig("Airflow has given no context")
        found = read_history(context)
        tries = found.tries
        if tries is None or tries.newest.latest_try != try_number:
            return self._default(text.NOT_LAUNCHED)
        if tries.over and len(tries.stuck) >= self.stuck_after:
            return RetryDecision.fail(text.stuck(found.state, tries))
        return self._default(text.goes_on(found.state, tries, self.stuck_after))

    def _default(self, reason: str | None = None) -> RetryDecision:
        """Return Airflow's own rule; with ``delay``, a retry after it if that rule gives one."""
        action = RetryAction.DEFAULT if self.delay is None else RetryAction.RETRY
        return RetryDecision(action, self.delay, reason)

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as JSON, the delay in seconds."""
        delay = None if self.delay is None else self.delay.total_seconds()
        return {"__type": type(self).__name__, "stuck_after": self.stuck_after, "delay": delay}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        delay = data.get("delay")
        return cls(data["stuck_after"], None if delay is None else timedelta(seconds=delay))
