"""Stored parts whose frames cannot be built now, to compare them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from airflow_checkpoint_provider.errors import CheckpointNotFound, Fenced, StoreDenied, WrongUse
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.stages.part_frames import FramesOfFunction, KeptParts
from airflow_checkpoint_provider.spark.stages.reuse import Verdict

ANY: Any = None
DAYS = ("mon", "tue")


class ClientError(Exception):
    """An error of a client, which knows neither Spark nor this package."""


def compared(error: Exception) -> KeptParts:
    """Compare two stored parts, each of which raises an error."""

    def broken(day: str) -> Any:
        raise error

    stages: Any = SimpleNamespace(building=lambda uid: nullcontext())
    parts = PartsDetail(values=(*DAYS, "wed"), done=(Part(), Part()))
    frames = FramesOfFunction(stages, "days", broken, Parts(given=parts.values, values=parts.values))
    return frames._compared(KeptParts(ANY, ANY, parts, Verdict(True)), ANY)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("the folder"),
        AnalysisException("the table"),
        Py4JError("the driver of a database"),
        ClientError("the bucket"),
        KeyError("the day"),
        CheckpointNotFound("the checkpoint of that day"),
        StoreDenied("the storage of that day"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_part_whose_input_is_gone_is_kept_and_named_whatever_the_error_is(error: Exception) -> None:
    kept = compared(error)
    assert kept.verdict.reuse
    name = type(error).__name__
    assert kept.unseen == ", ".join(f'part "{day}", which cannot be built now ({name})' for day in DAYS)


@pytest.mark.parametrize("error", [WrongUse("a sink in the function"), Fenced("a newer attempt")])
def test_wrong_script_and_the_end_of_the_attempt_are_no_missing_input(error: Exception) -> None:
    with pytest.raises(type(error)):
        compared(error)
