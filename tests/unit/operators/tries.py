"""Tries of a task, as far as its submission. Runs anywhere."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.coordinator.liveness import Beats
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._launched import LaunchParameters
from airflow_checkpoint_provider.protocol.keys import History
from tests.support.recorded import RUN, Recorded, at

BEATS = Beats(every=0.05, wait=1, still=1)
DEAD = Beats(every=0.05, wait=0.1, still=0.1)
"""For a driver that beats no more: whoever looks may look shortly."""


class Try:
    """A try of the task, with the lines it printed."""

    def __init__(
        self, recorded: Recorded, try_number: int, generation: int = 0, beats: Beats = BEATS, **options: Any
    ) -> None:
        self.lines: list[str] = []
        parameters = LaunchParameters(
            history=History(recorded.job, RUN),
            token=recorded.token(RUN, generation),
            try_number=try_number,
            run_after=None,
            now=at("03:02:10"),
            **options,
        )
        self.launch = DriverLaunch(recorded.store, parameters, self.lines.extend, beats)
