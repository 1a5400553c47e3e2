"""Durations, sizes and times as people read them."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.text import units

NOW = "2026-11-21T03:02:10.000Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.26, "0.3 s"),
        (8.1, "8.1 s"),
        (9.94, "9.9 s"),
        (9.95, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (120, "2 min"),
        (599.6, "10 min"),
        (37 * 60 + 20, "37 min"),
        (59 * 60 + 40, "1 h"),
        (4 * 3600 + 14 * 60, "4 h 14 min"),
        (47 * 3600 + 59 * 60 + 50, "2 d"),
        (76 * 3600, "3 d 4 h"),
    ],
)
def test_duration_as_text(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "exit code unknown"),
        (1, "exit code 1"),
        (79, "exit code 79"),
        (128, "exit code 128"),
        (137, "exit code 137: SIGKILL"),
        (143, "exit code 143: SIGTERM"),
        (255, "exit code 255"),
    ],
)
def test_exit_code_names_its_signal(code: int | None, text: str) -> None:
    assert units.exit_code(code) == text


@pytest.mark.parametrize(
    ("outcome", "code", "at", "text"),
    [
        ("finished", 0, "02:51:07", "finished 02:51:07"),
        ("failed", 137, "02:51:07", "failed 02:51:07 (exit code 137: SIGKILL)"),
        ("lost", None, "", "was lost (exit code unknown)"),
    ],
)
def test_end_of_an_attempt_as_text(outcome: str, code: int | None, at: str, text: str) -> None:
    assert units.how_it_ended(outcome, code, at) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (4.4, "4 s"), (59.4, "59 s"), (59.6, "1 min")])
def test_duration_without_fractions_as_text(seconds: float, text: str) -> None:
    assert units.ago(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(4320, "1 h 12"), (3600, "1 h"), (720, "12 min"), (5, "5.0 s")])
def test_brief_duration_as_text(seconds: float, text: str) -> None:
    assert units.brief(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3482, "3.4 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (65712845619, "61.2 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_size_as_text(count: int, text: str) -> None:
    assert units.size(count) == text


def test_time_is_shown_in_utc() -> None:
    assert units.clock("2026-11-21T03:02:10.000+01:00") == "02:02:10"
    assert units.day_and_time(NOW) == "2026-11-21 03:02"
    assert (units.clock(""), units.day_and_time("")) == ("", "")


def test_time_of_another_day_shows_the_day() -> None:
    assert units.when("2026-11-21T00:00:01.000Z", NOW) == "00:00:01"
    assert units.when("2026-11-20T23:59:59.000Z", NOW) == "2026-11-20 23:59"


def test_negative_time_between_clocks_is_not_measured() -> None:
    assert units.between("2026-11-21T03:00:00.000Z", NOW) == 130
    assert units.between(NOW, "2026-11-21T03:00:00.000Z") == 0
    assert units.between("", NOW) == 0


def test_long_list_is_cut() -> None:
    assert units.some(["a", "b"]) == "a, b"
    assert units.some(list("abcdef"), at_most=3) == "a, b, c and 3 more"


def test_columns_have_the_width_of_their_cells() -> None:
    assert units.table(("id", "why"), [("chk-10", "x"), ("1", "")]) == ["id      why", "chk-10  x", "1"]
