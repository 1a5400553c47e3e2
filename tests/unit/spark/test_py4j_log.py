"""py4j's log while secrets are handed to Java: threads may overlap, and the script's own level comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.spark.py4j_log import quiet_py4j

CALLS = logging.getLogger("py4j.clientserver")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """All loggers are at DEBUG, as a script may say; py4j's has no level of its own."""
    levels = [(logger, logger.level) for logger in (logging.getLogger(), logging.getLogger("py4j"))]
    levels[0][0].setLevel(logging.DEBUG)
    levels[1][0].setLevel(logging.NOTSET)
    yield
    for logger, before in levels:
        logger.setLevel(before)


def test_calls_are_not_logged_while_any_thread_hands_over_secrets() -> None:
    first, second = quiet_py4j(), quiet_py4j()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not CALLS.isEnabledFor(logging.DEBUG)
    second.__exit__(None, None, None)
    assert CALLS.isEnabledFor(logging.DEBUG), "as before"


def test_logger_that_says_less_is_not_made_to_say_more() -> None:
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with quiet_py4j():
        assert not CALLS.isEnabledFor(logging.WARNING)
    assert logging.getLogger("py4j").level == logging.ERROR
