"""Runs a job's script and, at a named step of the real code, ends or stops the driver. Runs in the Spark driver.

    python -m tests.support.crash ACTION POINT script.py arguments...     (or given to spark-submit as the script)

``record`` writes each point that is passed into the file POINT instead. Points are named after what just happened or is
about to: ``stage/clean/rows-written``, ``checkpoint/2/before-seal``, ``attempt/started``, ``value/rows/set-3``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.checkpoint import commands as c
from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.journal import Journal
from airflow_checkpoint_provider.spark import groups, job, stages, states

Label = Callable[..., str]
Reached = Callable[[str], None]


def kill(_: str) -> None:
    """As ``kill -9`` from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_jvm(_: str) -> None:
    """The driver is on its own from here."""
    from pyspark import SparkContext

    os.kill(SparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)  # type: ignore[union-attr]


def kill_jvm_and_compute(point: str) -> None:
    """Nothing of Spark is called any more: no error will tell."""
    kill_jvm(point)
    while True:
        sum(range(1000))


def stop(_: str) -> None:
    """The whole group of processes sleeps, until somebody sends SIGCONT."""
    os.killpg(0, signal.SIGSTOP)


ACTIONS: dict[str, Reached] = {"kill": kill, "kill-jvm": kill_jvm, "kill-jvm-and-compute": kill_jvm_and_compute, "stop": stop}


def at(point: str, action: Reached) -> Reached:
    """``action`` when ``point`` is reached, once."""
    waiting = threading.Lock()

    def reached(name: str) -> None:
        if name == point and waiting.acquire(blocking=False):
            action(name)

    return reached


def recorder(file: Path) -> Reached:
    """A line for each point."""

    def reached(name: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{name}\n")

    return reached


# -- the steps ---------------------------------------------------------------------------------------------------------


def watch(reached: Reached) -> None:
    """Let ``reached`` hear of every step from here on."""
    _wrap(reached, groups, "write", "", "stage/{}/rows-written", lambda df, uri, **_: uri.split("/")[-2])
    _wrap(reached, groups, "count_rows", "", "stage/{}/rows-counted", lambda _, written: written.uri.split("/")[-2])
    _wrap(reached, stages.Stages, "_keep_plan", "", "stage/{}/plan-kept", lambda _, path, plan: path.split("/")[-2])
    _wrap(reached, Coordinator, "acknowledge", "checkpoint/{}/before-acknowledgement", "checkpoint/{}/acknowledged", lambda _, ack: ack.id)
    _wrap(reached, Coordinator, "_put_seal", "checkpoint/{}/before-seal", "checkpoint/{}/sealed", lambda _, number, body: number)
    _wrap(reached, Coordinator, "_delete", "", "checkpoint/{}/deleted", lambda _, checkpoint: checkpoint.id)
    _wrap(reached, job.CheckpointedJob, "_begin", "", "attempt/attached", lambda *_: "")
    _wrap(reached, Journal, "append", "{}/before-entry", "{}/entry", _Commands())
    _wrap_write(reached)
    _wrap_values(reached)


class _Commands:
    """The name of what is appended; a checkpoint has its number only afterwards."""

    def __init__(self) -> None:
        self.triggered = 0

    def __call__(self, journal: Journal, command: Any) -> str:
        if callable(command):
            command = command(journal.state)
        match command:
            case c.StartAttempt() | c.StartAlone():
                return "attempt/start"
            case c.EndAttempt():
                return "attempt/end"
            case c.Trigger():
                return f"checkpoint/{journal.state.next_id}/trigger"
            case c.Complete(id=number):
                return f"checkpoint/{number}/complete"
            case c.Condemn(ids=ids):
                return f"checkpoint/{max(ids)}/condemn"
            case c.Forget(ids=ids):
                return f"checkpoint/{max(ids)}/forget"
        return type(command).__name__


def _wrap(reached: Reached, place: Any, name: str, before: str, after: str, label: Callable[..., object]) -> None:
    original = getattr(place, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        what = label(*args, **kwargs)
        if before:
            reached(before.format(what))
        result = original(*args, **kwargs)
        reached(after.format(what))
        return result

    setattr(place, name, wrapped)


def _wrap_write(reached: Reached) -> None:
    """``stage/<uid>/writing``: some rows are in the directory, and nothing is committed."""
    original = groups.write

    def write(df: Any, uri: str, **options: Any) -> Any:
        over = threading.Event()
        watching = threading.Thread(target=_see_files, args=(Path(uri.removeprefix("file://")), over, reached), daemon=True)
        watching.start()
        written = original(df, uri, **options)
        over.set()
        watching.join()
        return written

    groups.write = write


def _see_files(folder: Path, over: threading.Event, reached: Reached) -> None:
    while not over.is_set() and not any(path.is_file() for path in folder.rglob("*")):
        time.sleep(0.001)
    reached(f"stage/{folder.parent.name}/writing")


def _wrap_values(reached: Reached) -> None:
    original, times = states.Value.set, Counter[str]()

    def set_(self: states.Value, value: Any) -> None:
        original(self, value)
        times[self._uid] += 1
        reached(f"value/{self._uid}/set-{times[self._uid]}")

    states.Value.set = set_  # type: ignore[method-assign]


def main(action: str, point: str, script: str, *arguments: str) -> None:
    watch(recorder(Path(point)) if action == "record" else at(point, ACTIONS[action]))
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
