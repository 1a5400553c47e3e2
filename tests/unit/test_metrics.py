"""Gauges with the names of Flink, sent by Airflow's OpenTelemetry logger to the real SDK. Runs in Airflow (worker)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk.observability import stats
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from airflow_checkpoint_provider import metrics
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, QueryProgress
from airflow_checkpoint_provider.hooks.driver_monitor import follow
from airflow_checkpoint_provider.metrics import EVERY, Gauges, gauges, query_gauges
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.operators._launched import LaunchParameters
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import Fault, FaultyStore
from tests.support.recorded import RUN, Recorded, at, second_attempt, three_stages
from tests.support.waiting import wait_until

FLINKS = {
    "totalNumberOfCheckpoints", "numberOfInProgressCheckpoints", "numberOfCompletedCheckpoints", "numberOfFailedCheckpoints",
    "lastCheckpointRestoreTimestamp", "lastCheckpointSize", "lastCheckpointFullSize", "lastCheckpointMetadataSize",
    "lastCheckpointDuration", "lastCheckpointProcessedData", "lastCheckpointPersistedData", "lastCheckpointExternalPath",
    "lastCompletedCheckpointId", "lastCheckpointCompletedTimestamp",
}  # fmt: skip
NOT_SENT = {
    "lastCheckpointExternalPath",
    "lastCheckpointProcessedData",
    "lastCheckpointPersistedData",
}
JOB, LEVEL = "flights_etl.delays", "flights_etl__delays"
TAGS = {"job_id": JOB, "dag_id": "flights_etl", "task_id": "delays"}
BEATS = Beats(every=0.05, wait=1, still=30)


class Sent:
    """The newest value and the tags of each gauge that reached OpenTelemetry; its SDK writes names in lower case."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.logger = SafeOtelLogger(MeterProvider([self._reader]), "airflow")
        self.tags: dict[str, dict[str, Any]] = {}
        self._values: dict[str, float] = {}

    @property
    def values(self) -> dict[str, float]:
        """A reader hands out each change once."""
        data = self._reader.get_metrics_data()
        for metric in (
            (m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics)
            if data
            else ()
        ):
            name = metric.name.removeprefix("airflow.checkpoint.")
            for point in metric.data.data_points:
                assert isinstance(point, NumberDataPoint)
                self._values[name], self.tags[name] = point.value, dict(point.attributes or {})
        return dict(self._values)

    def wait(self, name: str, ready: Callable[[float], bool]) -> None:
        name = name.lower()
        wait_until(lambda: name in self.values and ready(self.values[name]), say=lambda: repr(self.values), every=0.02)


@pytest.fixture
def sent() -> Iterator[Sent]:
    sent = Sent()
    logger: Any = sent.logger  # Airflow declares the methods of its loggers as class methods, and writes none so
    stats.initialize(factory=lambda: logger, export_legacy_names=True)
    yield sent
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


@pytest.fixture
def ours() -> Gauges:
    return Gauges(JOB, "flights_etl", "delays")


def finished() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    return recorded


def small(found: Mapping[str, float]) -> dict[str, float]:
    return {name.lower(): value for name, value in found.items()}


def test_names_are_those_of_flink() -> None:
    assert set(gauges(finished().state)) == FLINKS - NOT_SENT


def test_every_gauge_is_explained_in_the_docs() -> None:
    page = (Path(metrics.__file__).parents[1] / "docs" / "operate" / "pages-and-metrics.md").read_text()
    assert [
        name
        for name in sorted(FLINKS | {metrics.UNPROTECTED} | query_gauges(ORDERS, "").keys())
        if f"`{name}`" not in page
    ] == []


def test_gauges_of_an_empty_history_are_zero_or_minus_one() -> None:
    found = gauges(Recorded().state)
    assert {name for name, value in found.items() if value == 0} == {name for name in found if "umberOf" in name}
    assert {value for value in found.values() if value} == {-1}


def test_gauges_of_a_finished_run() -> None:
    found = gauges(finished().state)
    assert (found["totalNumberOfCheckpoints"], found["numberOfFailedCheckpoints"]) == (6, 1)
    assert (found["lastCompletedCheckpointId"], found["lastCheckpointDuration"]) == (6, 1000)
    assert found["lastCheckpointRestoreTimestamp"] == 1795230139000
    assert found["lastCheckpointCompletedTimestamp"] == 1795232650000
    assert (found["lastCheckpointSize"], found["lastCheckpointFullSize"]) == (0, 64612)
    assert found["lastCheckpointMetadataSize"] == 2067


def test_gauges_of_the_last_completed_checkpoint_stay_when_a_newer_one_is_aborted() -> None:
    recorded = Recorded()
    three_stages(recorded)
    before = gauges(recorded.state)
    recorded.aborted(recorded.state.pending[0].id, "03:01:00", "declined")
    after = gauges(recorded.state)
    last = [name for name in before if name.startswith("last")]
    assert [after[name] for name in last] == [before[name] for name in last]
    assert after["lastCompletedCheckpointId"] > 0


def test_gauges_are_those_of_the_checkpoint_that_completed_last_whatever_its_id() -> None:
    """A savepoint that was copied for an hour completes after checkpoints with higher ids."""
    state = finished().state
    first = next(checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at)
    assert first.completion
    slow = replace(first, completion=replace(first.completion, n=state.n))
    checkpoints = tuple(slow if checkpoint is first else checkpoint for checkpoint in state.checkpoints)
    assert gauges(state)["lastCompletedCheckpointId"] > first.id
    assert gauges(replace(state, checkpoints=checkpoints))["lastCompletedCheckpointId"] == first.id


def test_gauges_are_sent_by_tag_and_by_legacy_name(sent: Sent, ours: Gauges) -> None:
    state = finished().state
    ours.update(state)
    expected = small(gauges(state))
    assert sent.values == expected | {f"{LEVEL}.{name}": value for name, value in expected.items()}
    assert sent.tags["lastcheckpointsize"] == TAGS
    assert sent.tags[f"{LEVEL}.lastcheckpointsize"] == {}


def test_gauges_are_sent_by_tag_only_without_legacy_names(
    sent: Sent, ours: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    ours.update(finished().state)
    assert set(sent.values) == set(small(gauges(finished().state)))


def test_invalid_characters_of_a_name_are_replaced(sent: Sent) -> None:
    Gauges("flüge:täglich", "etl", "delays").update(finished().state)
    assert "fl_ge_t_glich_3f3008f6.lastcheckpointsize" in sent.values


@pytest.mark.usefixtures("sent")
def test_failing_backend_is_logged_once(ours: Gauges, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise OSError("no such host")

    stats.initialize(factory=broken, export_legacy_names=True)
    with caplog.at_level(logging.WARNING):
        ours.update(finished().state)
        ours.update_protection(Beat(at=at("22:00:30"), protected_since=at("22:00:20")))
        ours.send_unprotected()
    assert [record.getMessage() for record in caplog.records] == ["metrics cannot be sent: no such host"]


# -- unprotected work ------------------------------------------------------------------------------------------------------


def test_unprotected_seconds_go_on_by_the_own_clock(sent: Sent) -> None:
    now = [1000.0]
    ours = Gauges(JOB, "flights_etl", "delays", lambda: now[0])
    ours.send_unprotected()
    assert sent.values == {}
    ours.update_protection(Beat(at=at("22:05:00"), protected_since=at("22:00:00")))
    for passed, expected in ((0, 300), (EVERY - 1, 300), (1, 300 + EVERY)):
        now[0] += passed
        ours.send_unprotected()
        assert sent.values["unprotected_seconds"] == expected
    now[0] += EVERY
    ours.update_protection(Beat(at=at("22:05:21"), protected_since=at("22:05:20")))
    ours.send_unprotected()
    assert sent.values["unprotected_seconds"] == 1
    ours.reset()
    assert sent.values["unprotected_seconds"] == 0


# -- streaming queries -----------------------------------------------------------------------------------------------------

ORDERS = QueryProgress(
    uid="or.ders", batch=412, ended_at=at("22:04:30"), input_rate=1200.0, processed_rate=1500.0, state_rows=7, state_bytes=512,
)  # fmt: skip


def test_gauges_of_a_query_are_sent_by_tag_and_by_legacy_name(sent: Sent, ours: Gauges) -> None:
    ours.update_queries(Beat(at=at("22:05:00"), queries=(ORDERS,)))
    expected = {
        "queryInputRowsPerSecond": 1200.0, "queryProcessedRowsPerSecond": 1500.0, "queryRowsBehind": -1,
        "queryStateRows": 7, "queryStateBytes": 512, "querySecondsSinceBatch": 30,
    }  # fmt: skip
    legacy = f"{LEVEL}.or__ders"
    assert sent.values == small(expected) | {f"{legacy}.{name}": value for name, value in small(expected).items()}
    assert sent.tags["queryinputrowspersecond"] == {**TAGS, "query": "or.ders"}


def test_gauges_of_a_query_that_ended_are_unknown(sent: Sent, ours: Gauges) -> None:
    """So are those of all queries when no driver runs: a backend keeps the value that it was told last."""
    clicks = replace(ORDERS, uid="clicks")
    ours.update_queries(Beat(at=at("22:05:00"), queries=(ORDERS, clicks)))
    ours.update_queries(Beat(at=at("22:05:10"), queries=(clicks,)))
    rates = {uid: f"{LEVEL}.{uid}.queryinputrowspersecond" for uid in ("or__ders", "clicks")}
    assert (sent.values[rates["or__ders"]], sent.values[rates["clicks"]]) == (-1, 1200.0)
    ours.reset()
    assert {sent.values[f"{LEVEL}.clicks.{name.lower()}"] for name in query_gauges(ORDERS, "")} == {-1}


# -- followers -------------------------------------------------------------------------------------------------------------


class Following:
    """A try that adopted the driver of a recorded history and follows it in a thread."""

    def __init__(self, recorded: Recorded) -> None:
        parameters = LaunchParameters(
            history=History(JOB, RUN), token=recorded.token(RUN), try_number=2, run_after=None, now=at("03:02:10")
        )
        self.heart = Heart(recorded.store, recorded.keys.attempt_beat(1), Beat(epoch=1), BEATS)
        self.heart.update(lambda beat: replace(beat, protected_since=at("02:14:33"), queries=(ORDERS,)))
        self.heart.pulse()
        self._launch = DriverLaunch(recorded.store, parameters, lambda _: None, BEATS)
        self._launch.plan()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=follow,
            args=(self._launch, self._stop),
            kwargs={"log_checkpoints": False, "on_attach": lambda _: None},
            daemon=True,
        )

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)


def test_follower_of_a_driver_sends_gauges(sent: Sent) -> None:
    recorded = Recorded()
    three_stages(recorded)
    with Following(recorded):
        sent.wait("numberOfInProgressCheckpoints", lambda count: count == 1)
        sent.wait("unprotected_seconds", lambda seconds: seconds > 0)
        sent.wait("queryInputRowsPerSecond", lambda rate: rate == 1200.0)
        recorded.aborted(4, "02:55:00", "store failed")
        sent.wait("numberOfFailedCheckpoints", lambda count: count == 1)
    assert (sent.values["unprotected_seconds"], sent.values["queryinputrowspersecond"]) == (0, -1)


def test_unprotected_seconds_rise_while_the_store_is_silent(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "EVERY", 0.05)
    silent = threading.Event()
    recorded = Recorded(FaultyStore(MemoryStore(), lambda _: Fault.LOST if silent.is_set() else Fault.NONE))
    three_stages(recorded)
    with Following(recorded):
        sent.wait("unprotected_seconds", lambda seconds: seconds > 0)
        silent.set()
        expected = sent.values["unprotected_seconds"]
        sent.wait("unprotected_seconds", lambda seconds: seconds > expected + 0.2)
        silent.clear()


def test_gauges_of_an_item_have_it_as_a_tag_and_a_level(sent: Sent) -> None:
    Gauges(JOB, "flights_etl", "delays", item="s3://lake/orders").update(finished().state)
    values = sent.values
    assert values["totalnumberofcheckpoints"] == 6
    assert sent.tags["totalnumberofcheckpoints"] == {**TAGS, "item": "s3://lake/orders"}
    assert values[f"{LEVEL}.s3___lake_orders_9587a88f.totalnumberofcheckpoints"] == 6


def test_gauges_of_two_items_never_have_one_name(sent: Sent) -> None:
    """StatsD knows no tags, and a backend logs an error for each name that is too long."""
    items = ["a b", "a_b", "größe", "gr__e", "x" * 300, "x" * 301]
    for item in items:
        Gauges(JOB, "flights_etl", "delays", item=item).update(finished().state)
    names = {
        name for name in sent.values if name.startswith(f"{LEVEL}.") and name.endswith(".totalnumberofcheckpoints")
    }
    assert len(names) == len(items)
    assert max(map(len, names)) < 250
