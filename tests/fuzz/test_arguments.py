"""Random words on the command line: an exit code that the help names, and never a traceback. Runs anywhere."""

from __future__ import annotations

import random

import pytest

from airflow_checkpoint_provider.cli import request
from airflow_checkpoint_provider.cli.verbs import VERBS, name
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from tests.fuzz import lake
from tests.fuzz.lake import BYSTANDER, JOBS, ROOT
from tests.fuzz.mutations import CONTROL, attack, short_and_long

WORDS = [
    *(name(verb) for verb in VERBS),
    *(flag for arguments in VERBS.values() for flags, _ in arguments for flag in flags if flag.startswith("-")),
    *("orders", "flights_etl.delays", BYSTANDER, "manual__1", "scheduled__2026-11-20", "latest", "run-start", "none"),
    *(
        "chk-1",
        "chk-0",
        "1",
        "0",
        "-1",
        "٣",
        "9" * 5000,
        "1e400",
        "nan",
        "10 min",
        "table",
        "json",
        "plain",
        "a=b",
        "=",
    ),
    *(f"{ROOT}/jobs/orders/job/chk-1", f"{ROOT}/jobs/orders/job", ROOT, "memory://", "memory://other/x", "ftp://x/y"),
    *("", " ", ".", "..", "../..", "/", "~", "~/x", "\0", "a\0b", "\udc80", CONTROL, "é", "x" * 5000, "--", "-", "-h"),
    *("--root", "--root=~", "--help", "--yes=1", "s3://", "s3://KEY:SECRET@bucket/x", "file:///\n/x"),
]
LONGEST = 60_000  # characters


@pytest.fixture(autouse=True)
def _beats_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.01")
    monkeypatch.setattr(request, "EVERY", 0.001)


def argv(chance: random.Random) -> list[str]:
    """Return a verb, mostly with what it needs, and words at random."""
    verb, arguments = chance.choice(list(VERBS.items()))
    words = [name(verb)]
    for flags, options in arguments:
        value = chance.choice([*WORDS, *JOBS])
        if not flags[0].startswith("-"):
            words += [value] if options.get("nargs") != "?" or chance.random() < 0.5 else []
        elif chance.random() < 0.3 or options.get("required"):
            words += [chance.choice(flags)] + ([value] if "action" not in options else [])
    for _ in range(chance.choice([0, 0, 1, 2])):
        words.insert(chance.randrange(len(words) + 1), chance.choice(WORDS))
    return words


def attack_arguments(seed: str) -> None:
    words = argv(random.Random(seed))
    if "--root" in words or ("--to" in words and "/" in str(words)):
        words = [word for word in words if word not in ("--root", "--to")]  # nothing is written outside of the store
    lake.opened(
        {key: body for key, body in lake.whole().items() if "/heartbeat/" not in key}
    )  # nobody lives: no wait is long
    done = lake.run(*words)
    assert 0 <= done.code <= 6, words
    assert "Traceback" not in done.err
    assert len(done.out) + len(done.err) < LONGEST, words


@short_and_long(70, 6_000)
def test_any_words_end_with_an_exit_code_that_the_help_names(inputs: int) -> None:
    attack(attack_arguments, "arguments", inputs)
