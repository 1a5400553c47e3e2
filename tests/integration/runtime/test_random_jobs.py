"""Random jobs that are broken off, corrected and tried again: what holds in every undisturbed run holds at the end."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import DrawsDiffer
from tests.integration.runtime.conftest import Broken, Script
from tests.support.random_jobs import Player, Program, make_input, random_program
from tests.support.runs import Home

FAST, SLOW, KILLED = range(1), range(1, 185), range(20)
SPLIT = "spark.sql.files.maxPartitionBytes"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("jobs"))
    make_input(spark, folder)
    return folder


@contextmanager
def otherwise_split(spark: SparkSession, chance: random.Random) -> Iterator[None]:
    """Some attempts split their files otherwise."""
    before = str(spark.conf.get(SPLIT))
    spark.conf.set(SPLIT, chance.choice([before, before, "700b"]))
    try:
        yield
    finally:
        spark.conf.set(SPLIT, before)


def broken_off(script: Script, program: Program, chance: random.Random) -> None:
    """One attempt that is left after a random step, or refuses by a code."""
    points: list[str] = []
    last = chance.randint(1, 3 * len(program.steps))

    def reached(point: str) -> None:
        points.append(point)
        if len(points) == last:
            raise Broken

    try:
        with script.failing() as job:
            Player(job, program, reached).play()
    except DrawsDiffer:
        pass


def finished(script: Script, program: Program) -> list[str]:
    """The last attempt, which may refuse by a code once; its violations."""
    for left in (1, 0):
        try:
            with script.attempt() as job:
                player = Player(job, program, lambda point: None)
                player.play()
                return player.violations()
        except DrawsDiffer:
            if not left:
                raise
    return []


def lives(script: Script, folder: str, seed: int) -> None:
    chance = random.Random(seed)
    program = first = random_program(folder, chance)
    said = [f"seed {seed}: {first}"]
    for attempt in range(chance.randint(1, 3)):
        if attempt and chance.random() < 0.6:
            program = program.corrected(chance)
            script.change(repr(program))
        said.append(f"attempt {attempt + 1}: {program.steps}")
        with otherwise_split(script.spark, chance):
            broken_off(script, program, chance)
    if chance.random() < 0.7:
        program = program.corrected(chance)
        script.change(repr(program))
    said.append(f"last: {program.steps}")
    with otherwise_split(script.spark, chance):
        assert finished(script, program) == [], "\n".join(said)


@pytest.mark.parametrize("seed", FAST)
def test_random_job_ends_with_rows_that_fit_together(script: Script, folder: str, seed: int) -> None:
    lives(script, folder, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SLOW)
def test_many_random_jobs_end_with_rows_that_fit_together(script: Script, folder: str, seed: int) -> None:
    lives(script, folder, seed)


SCRIPT = """
    import os, signal, sys
    from tests.support.random_jobs import Player, Program, Step
    from airflow_checkpoint_provider.spark import CheckpointedJob

    PROGRAM = {program!r}
    points = []

    def reached(point):
        points.append(point)
        if len(points) == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)

    with CheckpointedJob() as job:
        player = Player(job, PROGRAM, reached)
        player.play()
        violations = player.violations()
    print("VIOLATIONS", violations)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", KILLED)
def test_random_job_survives_kills(folder: str, tmp_path: Path, seed: int) -> None:
    """With another number of cores in some tries. The script is corrected before the last one."""
    chance = random.Random(1_000_000 + seed)
    home = Home(tmp_path / "home")
    program = random_program(folder, chance)
    home.script.write_text(textwrap.dedent(SCRIPT).format(program=program))
    home.env["KILL_AT"] = str(chance.randint(1, 2 * len(program.steps)))
    said = f"seed {seed}, killed at {home.env['KILL_AT']}: {program}"
    killed = home.run()
    assert killed.code in (-9, 0), f"{said}\n{killed.log}"
    home.env["KILL_AT"] = "0"
    if chance.random() < 0.7:
        program = program.corrected(chance)
        home.script.write_text(textwrap.dedent(SCRIPT).format(program=program))
    confs = {"spark.master": chance.choice(["local[2]", "local[3]"])}
    ended = home.run(confs=confs)
    if ended.code == 1 and DrawsDiffer.code in ended.log:
        ended = home.run(confs=confs)
    assert ended.code == 0, f"{said}\n{program}\n{ended.log}"
    assert "VIOLATIONS []" in ended.log, f"{said}\n{program}\n{ended.log}"
