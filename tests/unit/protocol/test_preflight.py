"""The request to a preflight driver, as it stands in an environment. Runs anywhere."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE, PreflightRequest

REQUEST = PreflightRequest("file:///root", "jobs/orders/job", "latest", "/tmp/x/answer")
DATA = json.loads(REQUEST.to_environment()[PREFLIGHT_VARIABLE])


def test_request_comes_back() -> None:
    assert PreflightRequest.of(REQUEST.to_environment()) == REQUEST


@pytest.mark.parametrize("environment", [{}, {PREFLIGHT_VARIABLE: ""}])
def test_environment_without_a_request_asks_for_nothing(environment: dict[str, str]) -> None:
    assert PreflightRequest.of(environment) is None


@pytest.mark.parametrize(
    "text",
    [
        "1",
        " ",
        "true",
        "{",
        "[]",
        "null",
        "{}",
        '"latest"',
        "[" * 100_000,
        "\ud800",
        json.dumps({**DATA, "more": 1}),
        json.dumps({**DATA, "source": None}),
        json.dumps({**DATA, "answer": ""}),
        json.dumps({**DATA, "root": ["file:///root"]}),
        json.dumps({name: DATA[name] for name in ("root", "history")}),
    ],
    ids=lambda text: text[:20],
)
def test_text_that_no_command_writes_is_refused_and_says_what_to_unset(text: str) -> None:
    with pytest.raises(InvalidConfig, match=f"Unset it, and start the script again: `unset {PREFLIGHT_VARIABLE}`"):
        PreflightRequest.of({PREFLIGHT_VARIABLE: text})
