"""One attempt of the application, as the driver's threads share it. Runs in the Spark driver."""

from __future__ import annotations

import threading

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Run
from airflow_checkpoint_provider.spark.attempt.activity import Activity
from airflow_checkpoint_provider.spark.attempt.ending import AttemptEnd
from airflow_checkpoint_provider.spark.attempt.file_sets import FileSets
from airflow_checkpoint_provider.spark.attempt.journal_writer import JournalWriter
from airflow_checkpoint_provider.spark.attempt.leaving import Leaving


class Attempt:
    """The running attempt. Any thread may read ``journal.state``, as far as the journal was read; only ``writer`` reads on and writes."""

    def __init__(self, coordinator: Coordinator, record: AttemptRecord, run: Run, restored: Restored) -> None:
        self.record, self.run, self.restored, self.epoch = record, run, restored, record.epoch
        self.journal, self.store, self.keys = coordinator.journal, coordinator.store, coordinator.keys
        paths = self.journal.state.paths()
        self.file_sets = FileSets([paths[number] for number in record.held_file_sets if number in paths])
        self.heart = Heart(self.store, self.keys.attempt_beat(self.epoch), Beat(epoch=self.epoch))
        self.activity = Activity(self.heart)
        self.barriers = threading.RLock()
        """Held while a barrier is served: barriers come one after the other."""
        self.leaving = Leaving(self.journal, self.epoch, self.activity)
        self.writer = JournalWriter(coordinator, record.application, self.file_sets, self.leaving)
        self.end = AttemptEnd(record, self.journal, self.writer, self.heart, self.leaving)
