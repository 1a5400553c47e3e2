"""A real process that stops itself at one of its steps, as a driver whose host sleeps, and goes on when it is woken. Runs on Linux.

    with Sleeping(commit, 7) as old:  # ``commit`` is given a function, and calls it at each of its steps
        if old.step:                  # it is asleep just before its seventh
            overwrite_the_target()
        ended = old.wake()

It is a fork of the test: what the test has prepared or patched is there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from traceback import format_exc
from typing import Self

from airflow_checkpoint_provider.errors import CheckpointError

fork = multiprocessing.get_context("fork")

PATIENCE = 60.0  # seconds, for one step
Step = Callable[[str], object]
Action = Callable[[Step], bool]


@dataclass(frozen=True)
class Ended:
    """What the process has answered, and how many steps it has made."""

    answer: bool
    steps: int


class Sleeping:
    """``action`` in a process of its own, which stops itself just before step ``at``. ``step`` names it; empty if it had fewer steps."""

    def __init__(self, action: Action, at: int = 0) -> None:
        self._told, self._tells = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_live, args=(action, at, self._tells.send))
        self._ended: Ended | None = None
        self.step = ""

    def __enter__(self) -> Self:
        self._process.start()
        self._tells.close()
        told = self._hear()
        if isinstance(told, Ended):
            self._ended = told
        else:
            self.step = told
            # It says so just before it does it
            found = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert found
            assert found.si_code == os.CLD_STOPPED
        return self

    def wake(self) -> Ended:
        """Let it go on, and return how it ended. Raises ``AssertionError`` with its error."""
        if self._ended is None:
            os.kill(self._pid, signal.SIGCONT)
            told = self._hear()
            assert isinstance(told, Ended)
            self._ended = told
        self._process.join(PATIENCE)
        assert self._process.exitcode == 0
        return self._ended

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(PATIENCE)
        self._told.close()

    @property
    def _pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def _hear(self) -> str | Ended:
        assert self._told.poll(PATIENCE), "the process says nothing"
        told: str | Ended | BaseException = self._told.recv()
        if isinstance(told, BaseException):
            raise told
        return told


def _live(action: Action, at: int, tell: Callable[[str | Ended | BaseException], None]) -> None:
    steps = 0

    def step(name: str) -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            tell(name)
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        told: Ended | BaseException = Ended(action(step), steps)
    except Exception:  # noqa: BLE001 - the test shows it
        told = AssertionError(format_exc())
    tell(told)


@dataclass(frozen=True)
class Rounds:
    """Rounds in which a process should sleep, each at another step; those in which it did; and those that ended as they should not."""

    steps: int
    slept: list[str] = field(default_factory=list)
    red: list[str] = field(default_factory=list)


def at_each_step(play: Callable[[int], tuple[str, Ended]], every: int = 1) -> Rounds:
    """Call ``play`` for each step, or for some, and return its rounds. It returns the step at which a process slept, and how that ended.

    First of all the process does not sleep: that is step 0, and tells how many there are. An error makes another round red.
    """
    _, undisturbed = play(0)
    steps = range(1, undisturbed.steps + 1, every)
    rounds = Rounds(len(steps))
    for at in steps:
        try:
            step, _ = play(at)
        except (AssertionError, CheckpointError) as error:
            rounds.red.append(f"step {at}: {error}")
        else:
            if step:
                rounds.slept.append(step)
    return rounds
