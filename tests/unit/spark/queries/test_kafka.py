"""The earliest offsets of Kafka in the heartbeat: they are asked for as long as the query runs. Runs anywhere."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets
from airflow_checkpoint_provider.errors import SourceUnavailable
from airflow_checkpoint_provider.spark.queries.sources import kafka
from airflow_checkpoint_provider.spark.queries.sources.kafka import KafkaSources
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.journals import KEYS

FOUND = EarliestOffsets(uid="orders", at="2026-11-20T00:00:00.000Z", sources={"0": '{"orders":{"0":7}}'})


@pytest.mark.parametrize(
    "error", [SourceUnavailable("no broker answers"), RuntimeError("an answer that nobody expects")]
)
def test_question_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    answers: list[Exception | EarliestOffsets] = [error, FOUND]

    def ask(_: KafkaSources) -> EarliestOffsets:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(KafkaSources, "_earliest", ask)
    monkeypatch.setattr(kafka, "PACE", 0)
    heart = Heart(MemoryStore(), KEYS.attempt_beat(1), Beat())
    KafkaSources(cast(SparkSession, None), "orders", [])._show(lambda: bool(answers), heart)
    assert heart._beat.earliest == (FOUND,)
