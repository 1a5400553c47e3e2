"""A driver of which there is no sign yet, as the trigger of its launch waits for it. Runs in Airflow (triggerer)."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks import yarn
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import deferral
from airflow_checkpoint_provider.triggers.checkpoint import Repetition

FIRST, EVERY = 10.0, 30.0  # seconds between two questions; a driver that need not wait has attached before the first
FORGOTTEN = 60.0  # seconds; a resource manager that starts answers before it has recovered its applications


class Unattached:
    """Says when the task must ask the cluster manager: the application has ended, or nobody has heard of it for too long.

    On YARN the resource manager is asked here, so that the task sleeps on while its application is queued. A manager that wants a
    login, or whose address the connection does not have, is left to the task.

    :param conn_id: the Spark connection with the manager's address.
    :param application: YARN's id of the application; empty if there is none to ask about.
    :param patience: seconds without any sign.
    """

    def __init__(self, conn_id: str, application: str, patience: float, log: Callable[[str], object]) -> None:
        self._conn_id, self._application, self._patience, self._log = conn_id, application, patience, log
        self._since = self._known = time.monotonic()  # of the last sign; of the last word that the application exists
        self._ask_at = self._since + min(FIRST, patience / 2)
        self._address: str | None = None
        self._said = Repetition()

    def over(self, state: State) -> bool:
        """Return whether the task must ask."""
        if self._application and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + min(EVERY, self._patience / 2)
            word, now = self._ask(state), time.monotonic()
            if word in yarn.LIVES:
                self._since = self._known = now
            elif word and (word != yarn.NOT_KNOWN or now - self._known >= FORGOTTEN):
                return True
        return time.monotonic() - self._since >= self._patience

    def _ask(self, state: State) -> str:
        """Return the state of the application, and log it; empty if the resource manager cannot be asked."""
        try:
            self._address = self._address or yarn.address_in(self._conn_id)
            if self._address is None:
                self._application = ""
                return ""
            word = yarn.state_of(self._address, self._application)
        except (CheckpointError, *yarn.ERRORS) as error:
            # Its text may hold the address, with a password in it.
            line = deferral.no_answer(state, type(error).__name__)
            word = ""
        else:
            line = deferral.asked(state, f"{word} of {self._application}")
        if self._said.due(line):
            self._log(line)
        return word
