"""``CheckpointConfig``: durations, validation, and options refused because they do nothing yet. Runs anywhere."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.config import seconds
from airflow_checkpoint_provider.protocol.records import canonical
from tests.support.histories import History


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10 min", 600.0),
        ("10min", 600.0),
        ("10 minutes", 600.0),
        ("1 minute", 60.0),
        (" 10  Min ", 600.0),
        ("500 ms", 0.5),
        ("90 s", 90.0),
        ("90 sec", 90.0),
        ("90 seconds", 90.0),
        ("1.5 h", 5400.0),
        ("2 hours", 7200.0),
        ("1 d", 86400.0),
        ("7 days", 604800.0),
        (0, 0.0),
        (30, 30.0),
        (0.25, 0.25),
        (timedelta(minutes=2, milliseconds=500), 120.5),
    ],
)
def test_duration_is_read_in_seconds(value: str | float | timedelta, expected: float) -> None:
    assert seconds(value, "timeout") == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", "10", "min", "ten min", "-1 s", "10 m", "10 fortnights", "1h30m", "10 min 5 s", "1,5 h", "1e3 s", "inf"),
        *(-1, -0.1, float("nan"), float("inf"), True, None, [], timedelta(seconds=-1)),
        *(10**400, 1e308, timedelta.max, f"{'9' * 400} d", "365001 d", "9" * 400),
        *(
            "1 sss",
            "1 ss",
            "1 mss",
            "2 hs",
            "3 ds",
            "٣ s",
            "1\u066b5 h",
            "\uff11 min",
            "1 \u0455",
            "1 min\x1b",
            "nan s",
            "1. s",
            ".5 s",
        ),
    ],
)
def test_invalid_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^timeout=.*such as '10 min'") as caught:
        seconds(value, "timeout")
    assert repr(value) in caught.value.message


def test_defaults_are_those_of_flink_except_retention() -> None:
    """The default retention keeps two, so that an older checkpoint is left if the newest is damaged."""
    config = CheckpointConfig()
    assert config.timeout_s == 600.0
    assert config.retention == KeepLatest(2)
    assert (config.interval, config.min_pause, config.max_concurrent) == ("10 min", "0 s", 1)
    assert (config.tolerable_failures, config.mode, config.aligned_timeout) == (None, "exactly_once", None)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ({"interval": "9 ms"}, "'10 min'"),
        ({"interval": 0}, "'10 min'"),
        ({"interval": "often"}, "such as '10 min'"),
        ({"timeout": "9 ms"}, "'10 min'"),
        ({"min_pause": -1}, "such as '10 min'"),
        ({"max_concurrent": 0}, "1 or more"),
        ({"max_concurrent": "2"}, "1 or more"),
        ({"max_concurrent": True}, "1 or more"),
        ({"tolerable_failures": -1}, "0 or more"),
        ({"tolerable_failures": 1.5}, "0 or more"),
        ({"tolerable_failures": 2**31 - 1}, "write None"),
        ({"mode": "once"}, "'exactly_once' or 'at_least_once'"),
        ({"aligned_timeout": "10 s", "mode": "at_least_once"}, "mode='exactly_once'"),
        ({"aligned_timeout": "10 s", "max_concurrent": 2}, "max_concurrent=1"),
    ],
)
def test_invalid_option_is_refused_with_advice(option: dict[str, Any], advice: str) -> None:
    """The checks are Flink's; each error names a valid value."""
    with pytest.raises(InvalidConfig) as caught:
        CheckpointConfig(**option)
    assert advice in caught.value.message


def test_min_pause_raises_the_interval_and_is_at_most_a_year() -> None:
    assert CheckpointConfig(interval="1 min", min_pause="5 min").interval_s == 300.0
    assert CheckpointConfig(interval="10 ms").interval_s == 0.01
    assert CheckpointConfig(min_pause=timedelta(days=5000)).min_pause_s == 365 * 86400.0


def test_aligned_timeout_is_a_duration_or_none() -> None:
    assert CheckpointConfig().aligned_timeout_s is None
    assert CheckpointConfig(aligned_timeout="0 s").aligned_timeout_s == 0.0
    with pytest.raises(InvalidConfig, match="aligned_timeout='soon' is not a duration"):
        CheckpointConfig(aligned_timeout="soon")


@pytest.mark.parametrize(
    "name", ["interval", "min_pause", "max_concurrent", "tolerable_failures", "mode", "aligned_timeout"]
)
def test_default_of_an_option_may_be_written(name: str) -> None:
    default = getattr(CheckpointConfig(), name)
    assert CheckpointConfig(**{name: default}) == CheckpointConfig()


@pytest.mark.parametrize("timeout", ["5 ms", 0, 0.001, timedelta(0)])
def test_timeout_below_10_ms_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidConfig, match="shorter than 10 ms; write"):
        CheckpointConfig(timeout=timeout)


@pytest.mark.parametrize("retention", [2, None, "KeepLatest(2)", KeepLatest, timedelta(days=7)])
def test_value_that_is_no_retention_is_refused(retention: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"write KeepLatest\(2\), KeepWithin\(days=7\) or KeepAll\(\)"):
        CheckpointConfig(retention=retention)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unexpected keyword argument 'unaligned'"):
        CheckpointConfig(unaligned=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "config",
    [
        CheckpointConfig(),
        CheckpointConfig(mode="at_least_once"),
        CheckpointConfig(aligned_timeout="0 s"),
        CheckpointConfig(timeout="1 h", retention=KeepLatest(5) | KeepWithin(days=7)),
        CheckpointConfig(timeout=0.5, retention=KeepAll() & KeepWithin(hours=1)),
    ],
)
def test_config_is_equal_after_json(config: CheckpointConfig) -> None:
    read = CheckpointConfig.from_json(json.loads(canonical(config.to_json())))
    assert (read.timeout_s, read.retention) == (config.timeout_s, config.retention)


@pytest.mark.parametrize(
    "changed", [{"interval_s": 60.0}, {"min_pause_s": 5.0}, {"max_concurrent": 3}, {"tolerable_failures": 0}, {}]
)
def test_defaults_are_not_stored(changed: dict[str, Any]) -> None:
    config = CheckpointConfig(**{name.removesuffix("_s"): value for name, value in changed.items()})
    stored = config.to_json()
    assert set(stored) == {"timeout_s", "retention", *changed}
    assert {name: stored[name] for name in changed} == changed
    assert CheckpointConfig.from_json(stored).to_json() == stored


def test_config_of_the_newest_attempt_is_in_force() -> None:
    history = History()
    assert history.state.config == CheckpointConfig()
    history.started(checkpointing=CheckpointConfig(timeout="1 min").to_json())
    history.started(try_number=2, checkpointing=CheckpointConfig(timeout="2 min").to_json())
    history.started(try_number=3, checkpointing=CheckpointConfig(timeout="3 min").to_json())
    assert history.state.config.timeout_s == 180.0
    history.started(try_number=4)
    assert history.state.config == CheckpointConfig(), "attempt 4 has no config"
