"""A run that is killed at every kind of step comes to what an undisturbed one comes to, and computes nothing twice.

Each attempt after the first goes on where the killed one was; the last is left alone. What is stored differs from one of
these points to the next; the points between them, and each alone, are in ``test_each_kill``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.integration.runtime.conftest import Undisturbed
from tests.integration.runtime.totals import CLEAN, NAMED, PRICED, TOTALS, check, stages
from tests.support.runs import Ended, Home

KILLED, BY_SPARK_SUBMIT = -9, 137


@dataclass(frozen=True)
class Step:
    """``kept``: the stages that the next attempt must not compute again. None: of two moments either may be first."""

    point: str
    kept: tuple[str, ...] | None
    action: str = "kill"
    submit: bool = False
    code: int = KILLED


def survive(home: Home, *steps: Step) -> Ended:
    """Run the script until it was killed at each step, and then to its end."""
    held: set[str] = set()
    for step in steps:
        ended = home.run((step.action, step.point), submit=step.submit)
        assert ended.code == step.code, ended.log
        assert not held & set(ended.computed)
        held = stages(home.coordinator().state)
        assert step.kept is None or held == set(step.kept), step
    ended = home.run()
    assert ended.code == 0, ended.log
    assert set(ended.computed) == {CLEAN, NAMED, PRICED, TOTALS} - held
    return ended


def ends(home: Home) -> list[str | None]:
    """How each attempt ended by its own word."""
    return [attempt.outcome for attempt in home.coordinator().state.attempts]


UNRECORDED = Step("attempt/before-start", ())
STEPS = (
    UNRECORDED,
    Step("attempt/started", ()),
    Step("stage/clean/writing", ()),
    Step("stage/clean/rows-written", ()),
    Step("stage/clean/plan-kept", ()),
    Step("value/rows/set-1", None),
    Step("stage/named/writing", (CLEAN,), "kill-jvm", code=1),
    Step("value/rows/set-2", None, "kill-jvm-and-compute", code=1),
    Step("stage/priced/rows-written", (CLEAN, NAMED), "kill-jvm", submit=True),
    Step("value/rows/set-3", None),
    Step("stage/totals/writing", (CLEAN, NAMED, PRICED), submit=True, code=BY_SPARK_SUBMIT),
    Step("value/rows/set-4", None),
    Step("attempt/before-end", (CLEAN, NAMED, PRICED, TOTALS)),
)


@pytest.mark.slow  # test_example_dag.py kills a driver in a stage
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("home", ["local", "s3"], indirect=True)
def test_run_completes_after_kills_at_start_in_stages_and_at_the_end(home: Home, undisturbed: Undisturbed) -> None:
    ended = survive(home, *STEPS)
    check(home, ended, undisturbed)
    killed = [step for step in STEPS if step is not UNRECORDED]
    # Where only the JVM was killed, Python wrote the end
    written = ["failed" if step.action.startswith("kill-jvm") else None for step in killed]
    assert ends(home) == [*written, "finished"]


@pytest.mark.slow  # as each_kill does one by one
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("home", ["local", "s3"], indirect=True)
def test_run_completes_after_kills_in_checkpoints_and_deletions(home: Home, undisturbed: Undisturbed) -> None:
    ended = survive(
        home,
        Step("checkpoint/1/triggered", ()),
        Step("checkpoint/1/acknowledged", ()),
        Step("checkpoint/1/sealed", ()),
        Step("checkpoint/1/completed", (CLEAN,)),
        Step("checkpoint/2/sealed", (CLEAN, NAMED)),
        Step("retire/1/condemned", (CLEAN, NAMED, PRICED)),
        Step("retire/1/deleted", (CLEAN, NAMED, PRICED)),
        Step("retire/1/forgotten", (CLEAN, NAMED, PRICED)),
    )
    check(home, ended, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_run_on_s3_completes_after_kills_in_uploads_and_deletions(home: Home, undisturbed: Undisturbed) -> None:
    """While rows are uploaded, and half-way through a deletion."""
    ended = survive(
        home,
        Step("stage/clean/writing", ()),
        Step("retire/1/condemned", (CLEAN, NAMED, PRICED)),
    )
    check(home, ended, undisturbed)
