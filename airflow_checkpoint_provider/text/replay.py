"""Whether Kafka still has the rows after a checkpoint, by its newest known offsets. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.histories import reads_kafka
from airflow_checkpoint_provider.coordinator.liveness import EarliestOffsets
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.kafka_offsets import Gap, gaps, kafka_offsets
from airflow_checkpoint_provider.protocol.metadata import QUERY, StateEntry
from airflow_checkpoint_provider.text.units import day_and_time, labelled, some

UNKNOWN = "not known: no heartbeat of the newest attempts has Kafka's offsets"
NOT_ASKED = "not known here: the driver asks the sources of its queries when it starts, before it changes a sink"


@dataclass(frozen=True)
class Replay:
    """The rows that Kafka lacked at the time ``at``, of those that the queries of a checkpoint read next."""

    at: str
    gaps: tuple[Gap, ...]


def replay(checkpoint: Checkpoint, earliest: Iterable[EarliestOffsets]) -> Replay | None:
    """Return which rows Kafka lacked, by its ``earliest`` offsets; None if those of a source are not known."""
    if not reads_kafka(checkpoint):
        return None
    known = {offsets.uid: offsets for offsets in earliest}
    reading = [state for state in checkpoint.states if state.sources]
    if any(state.uid not in known for state in reading):
        return None
    lost = list[Gap]()
    for state in reading:
        there = {number: kafka_offsets(offsets) for number, offsets in known[state.uid].sources.items()}
        for number, needed in state.sources.items():
            begins = there.get(number)
            if begins is None:
                return None
            lost += gaps(kafka_offsets(needed) or {}, begins)
    return Replay(min(known[state.uid].at for state in reading), tuple(lost))


def lines(checkpoint: Checkpoint, earliest: Iterable[EarliestOffsets]) -> list[str]:
    """Return the offsets from which the queries of a checkpoint read on, and whether Kafka had the rows there. The driver asks the other
    sources.
    """
    if not reads_kafka(checkpoint):
        queries = checkpoint.status == RETAINED and any(state.kind == QUERY for state in checkpoint.states)
        return [labelled("replayable", NOT_ASKED)] if queries else []
    found = replay(checkpoint, earliest)
    needed = [
        f"{topic}-{partition} from offset {offset}"
        for state in checkpoint.states
        for (topic, partition), offset in _needed(state)
    ]
    verdict = UNKNOWN
    if found:
        lost = some([str(gap) for gap in found.gaps])
        verdict = f"{'no' if lost else 'yes'}, by Kafka's offsets at {day_and_time(found.at)}{lost and f': {lost}'}"
    return [labelled("needs", some(needed)), labelled("replayable", verdict)]


def _needed(state: StateEntry) -> list[tuple[tuple[str, int], int]]:
    return [each for offsets in state.sources.values() for each in sorted((kafka_offsets(offsets) or {}).items())]
