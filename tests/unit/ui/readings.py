"""A history as the pages read it. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.ui.polling import HistoryReading
from tests.support.recorded import Recorded


def reading(recorded: Recorded, beat: Beat | None = None, alive: bool | None = None) -> HistoryReading:
    missing = {checkpoint.id: checkpoint.plan for checkpoint in recorded.state.pending}
    return HistoryReading(FoundHistory(recorded.keys, recorded.state), recorded.store.uri, beat, alive, missing)
