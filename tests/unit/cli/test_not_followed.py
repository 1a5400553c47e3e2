"""A deferred task whose driver no triggerer follows: the command line says so, and since when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.acting import Job
from tests.support.beats import put_beat
from tests.unit.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("fast_beats")
VERBS = pytest.mark.parametrize("verb", [("jobs",), ("show", "orders")])
DEFERRED = "2026-11-20T02:14:00.000Z"


def follower_beats(job: Job, ago: timedelta = timedelta()) -> None:
    put_beat(job.store, job.keys.launch_beat(1), off=-ago, deferred_at=DEFERRED)


@VERBS
def test_driver_without_a_follower_is_told_with_its_time(job: Job, checkpoints: Command, verb: tuple[str, ...]) -> None:
    job.beat()
    follower_beats(job, timedelta(minutes=5))
    done = checkpoints(*verb)
    (said,) = (line for line in f"{done.out}\n{done.err}".splitlines() if "[CKP115]" in line)
    assert said.startswith(
        "orders: its task was deferred 2026-11-20 02:14, and no triggerer has followed its driver since 20"
    )
    assert "The driver goes on" in said
    assert "If the task has ended, clear it, or end the driver: `checkpoints --root " in said
    assert said.endswith(" stop orders`  [CKP115]")


def ends(job: Job) -> None:
    follower_beats(job, timedelta(minutes=5))
    job.end()


@VERBS
@pytest.mark.parametrize("does", [follower_beats, ends, Job.take])
def test_driver_that_is_followed_or_over_or_not_deferred_is_not(
    job: Job, checkpoints: Command, verb: tuple[str, ...], does: Callable[[Job], object]
) -> None:
    job.beat()
    does(job)
    done = checkpoints(*verb)
    assert "CKP115" not in f"{done.out}{done.err}"
