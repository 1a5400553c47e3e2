"""Runs a job's script and, at a named step of the real code, ends or stops the driver. Runs in the Spark driver.

    python -m tests.support.crash ACTION POINT script.py arguments...     (or as the script that spark-submit is given)

``record`` writes each point that is passed into the file POINT instead; ``time`` writes its time, too. A point is named after
what has just happened or is about to: ``stage/clean/rows-written``, ``checkpoint/2/before-seal`` (of this driver's second),
``value/rows/set-3``, ``asked/1/copied`` (the first checkpoint that somebody else asked for), ``stage/days.3/writing`` (the third part
of a stage that this driver computes).
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
from typing import Any, NoReturn

from airflow_checkpoint_provider.coordinator import garbage, savepoint_target
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.location import copying, fence
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.sinks import postgresql, published_files
from airflow_checkpoint_provider.spark import job
from airflow_checkpoint_provider.spark.attempt import ending
from airflow_checkpoint_provider.spark.checkpoints import copies, savepoints
from airflow_checkpoint_provider.spark.loops import frames, loops
from airflow_checkpoint_provider.spark.loops.frame import OpenedFrame
from airflow_checkpoint_provider.spark.queries import cut, running
from airflow_checkpoint_provider.spark.queries.location import locations, rescaling
from airflow_checkpoint_provider.spark.queries.sinks import files as file_sink
from airflow_checkpoint_provider.spark.queries.sinks import sink_log
from airflow_checkpoint_provider.spark.sinks import delta, iceberg, iceberg_branches
from airflow_checkpoint_provider.spark.stages import kept_files, parquet_files, proof
from airflow_checkpoint_provider.spark.state import value as values
from airflow_checkpoint_provider.storage import open_store

Reached = Callable[[str], None]

ENTRIES: dict[type[c.Command], tuple[str, str, str]] = {
    c.StartAlone: ("attempt", "before-start", "started"),
    c.StartAttempt: ("attempt", "before-start", "started"),
    c.EndAttempt: ("attempt", "before-end", "ended"),
    c.Trigger: ("checkpoint", "before-trigger", "triggered"),
    c.Complete: ("checkpoint", "before-completion", "completed"),
    c.Abort: ("checkpoint", "before-abort", "aborted"),
    c.ConfirmCommits: ("checkpoint", "before-commit-confirmation", "commits-confirmed"),
    c.ConfirmPublished: ("checkpoint", "before-confirmation", "confirmed"),
    c.Condemn: ("retire", "before-condemning", "condemned"),
    c.Forget: ("retire", "before-forgetting", "forgotten"),
    c.LocateQuery: ("query", "before-location", "located"),
    c.SettleQuery: ("query", "before-settling", "settled"),
}
"""What an entry is about, and its points before and after it stands in the journal."""


# -- what is done at a point -------------------------------------------------------------------------------------------


def kill(_: str) -> None:
    """As ``kill -9`` from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_jvm(_: str) -> None:
    """The driver is on its own from here."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)


def kill_jvm_and_compute(point: str) -> None:
    """Nothing of Spark is called any more: no error tells of the death."""
    kill_jvm(point)
    while True:
        sum(range(1000))


def terminate(_: str) -> None:
    """As somebody who ends Python alone."""
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_group(_: str) -> None:
    """As Airflow ends a task: its JVM gets the signal, too."""
    os.killpg(0, signal.SIGTERM)


def stop(_: str) -> None:
    """All processes of the group sleep, until somebody sends them SIGCONT."""
    os.killpg(0, signal.SIGSTOP)


def linger(point: str) -> None:
    """The script does nothing any more, and the driver lives."""
    print("LINGERS at", point, os.getpid(), flush=True)
    threading.Event().wait()


def until_ended(point: str) -> None:
    """The step waits until somebody ends the driver in order, and goes on then."""
    told, in_order = threading.Event(), ending.AttemptEnd.in_order

    def begin(*args: Any) -> NoReturn:
        told.set()
        in_order(*args)

    ending.AttemptEnd.in_order = begin  # type: ignore[assignment,method-assign]
    print("WAITS at", point, flush=True)
    told.wait()


ACTIONS: dict[str, Reached] = {
    "kill": kill,
    "kill-jvm": kill_jvm,
    "kill-jvm-and-compute": kill_jvm_and_compute,
    "terminate": terminate,
    "terminate-group": terminate_group,
    "stop": stop,
    "linger": linger,
    "until-ended": until_ended,
}


def at(point: str, action: Reached) -> Reached:
    """``action`` when ``point`` is reached for the first time."""
    untouched = threading.Lock()

    def reached(name: str) -> None:
        if name == point and untouched.acquire(blocking=False):
            action(name)

    return reached


def recorder(file: Path, *, timed: bool = False) -> Reached:
    def reached(name: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{time.time()} {name}\n" if timed else f"{name}\n")

    return reached


# -- the steps ---------------------------------------------------------------------------------------------------------


class Steps:
    """Lets ``reached`` hear of every step of this process, by wrapping the functions that do them."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._times = Counter[str]()
        self._checkpoints: dict[int, int] = {}  # id -> number among those that this driver triggered
        self._asked: list[int] = []  # ids of those that others did
        self._condemned: dict[int, int] = {}  # id -> number among those that this driver condemned or deletes
        self._retiring = threading.Lock()
        self._written: dict[str, list[str]] = {}  # uid -> the directories of the parts that this driver computes

    def watch(self) -> None:
        self._wrap(job.CheckpointedJob, "_begin", lambda *_: "attempt", "", "attached")
        self._wrap(parquet_files, "write", lambda df, uri, **_: self._stage(uri), "", "rows-written")
        self._wrap(
            parquet_files, "count_rows", lambda spark, written, footers: self._stage(written.uri), "", "rows-counted"
        )
        self._wrap(proof.Proof, "_keep_plan", lambda proof: self._stage(proof.written.uri), "", "plan-kept")
        self._wrap(kept_files, "_listed", lambda uid, *_, **__: f"files/{uid}", "written", "listed")
        self._wrap(kept_files.FilesSnapshot, "_brought_in", _kept, "before-storing", "stored")
        self._wrap(
            Coordinator,
            "acknowledge",
            lambda _, ack: self._checkpoint(ack.id),
            "before-acknowledgement",
            "acknowledged",
        )
        self._wrap(Coordinator, "_put_seal", lambda _, number, body: self._checkpoint(number), "before-seal", "sealed")
        self._wrap(
            savepoints.Savepoints, "_copy", lambda _, one, *__: self._checkpoint(one.id), "before-copy", "copied"
        )
        self._wrap(
            savepoint_target,
            "put_metadata",
            lambda _, key, *__: self._checkpoint(_number(key)),
            "before-publishing",
            "published",
        )
        self._wrap(copies, "import_states", lambda *_: "attempt", "", "brought-in")
        self._wrap(
            garbage, "_delete_checkpoint", lambda _, __, checkpoint, *___: self._retired(checkpoint.id), "", "deleted"
        )
        self._wrap(fence, "_put", lambda *_: "query", "before-fence", "fenced")
        self._wrap(fence, "delete_temporary_entries", lambda *_: "query", "", "swept")
        self._wrap(locations, "delete_location", lambda *_: "query", "before-emptying", "emptied")
        self._wrap(copying, "copy_files", lambda *_: "query", "before-copy", "copied")  # of a location, of a checkpoint
        self._wrap(rescaling, "take_state", lambda *_: "query", "repartitioned", "state-taken")
        self._wrap(sink_log.SinkLog, "keep", lambda *_: "query", "before-rewinding", "rewound")
        self._wrap(cut.Cut, "_found", lambda *_: "cut", "before", "found")
        self._wrap(file_sink.FileStreamSink, "copy_out", lambda *_: "in-flight", "before-copy", "copied")
        self._wrap(file_sink, "bring", lambda *_: "in-flight", "before-bringing", "brought")
        self._wrap(running.RunningQuery, "_await_batch", lambda *_: "query", "started", "caught-up")
        self._wrap(running.RunningQuery, "pause", lambda *_: "query", "before-pause", "paused")
        self._wrap_sinks()
        self._wrap_loops()
        self._wrap_entries()
        self._wrap_writing()
        self._wrap_values()

    def _wrap_sinks(self) -> None:
        """``sink/write-2/prepared``, ``sink/commit-1/before-publication``: the second write of this driver, its first commit."""
        published = published_files.PublishedFiles
        for name, what, before, after in (
            ("begin", "begin", "before", "done"),
            ("stage", "write", "before", "staged"),
            ("prepared", "write", "rows-written", "prepared"),
            ("commit", "commit", "before", "done"),
            ("_publish", "commit", "before-publication", "published"),
            ("_delete_staged", "commit", "before-emptying", "emptied"),
        ):
            self._wrap(published, name, self._sink_label(what, counts=before == "before"), before, after)
        for name, what, before, after in (
            ("open", "begin", "before", "done"),
            ("note", "write", "before", "noted"),
            ("make_staging", "write", "before-staging", "staging-made"),
            ("seal", "write", "filled", "sealed"),
            ("commit", "commit", "before", "done"),
            ("_publish", "commit", "before-publication", "published"),
            ("_drop_over", "commit", "before-emptying", "emptied"),
        ):
            self._wrap(postgresql.PostgresTable, name, self._sink_label(what, counts=before == "before"), before, after)

        for name, what, before, after in (
            ("prepare", "write", "before", "prepared"),
            ("commit", "commit", "before", "done"),
            ("_save", "commit", "before-saving", "saved"),
        ):
            self._wrap(delta.OpenDeltaSink, name, self._sink_label(what, counts=before == "before"), before, after)

        for place, name, what, before, after in (
            (iceberg.OpenIcebergSink, "prepare", "write", "before", "prepared"),
            (iceberg.OpenIcebergSink, "_write", "write", "branch-made", "written"),
            (iceberg.OpenIcebergSink, "commit", "commit", "before", "done"),
            (iceberg_branches.BranchedTable, "_try", "commit", "before-saving", "saved"),
        ):
            self._wrap(place, name, self._sink_label(what, counts=before == "before"), before, after)

    def _wrap_loops(self) -> None:
        """``loop/rank/barrier-2/before``: the second barrier of that loop in this driver; ``frame/ranks-2/written``: at it."""
        for place, name, what, before, after in (
            (loops.Loops, "_go_on", "", "", "gone-on"),
            (loops.Loops, "_run_again", "", "", "run-again"),
            (loops.Loops, "_finish_turn", "turn", "before", "finished"),
            (loops.Loops, "_barrier", "barrier", "before", "begun"),
            (loops.Loops, "_take_over", "barrier", "frames-written", "taken-over"),
        ):
            self._wrap(place, name, self._loop_label(what, counts=before == "before"), before, after)
        self._wrap(frames.Frames, "_write", self._frame_label, "", "written")

    def _loop_label(self, what: str, *, counts: bool) -> Callable[..., str]:
        def label(_: Any, loop: Any, *__: Any) -> str:
            name = f"loop/{loop.uid}/{what}"
            self._times[name] += counts
            return f"{name}-{self._times[name]}" if what else f"loop/{loop.uid}"

        return label

    def _frame_label(self, _: Any, opened: OpenedFrame) -> str:
        self._times[f"frame {opened.uid}"] += 1
        return f"frame/{opened.uid}-{self._times[f'frame {opened.uid}']}"

    def _sink_label(self, what: str, *, counts: bool) -> Callable[..., str]:
        def label(*_: Any) -> str:
            self._times[f"sink {what}"] += counts
            return f"sink/{what}-{self._times[f'sink {what}']}"

        return label

    def _wrap(self, place: Any, name: str, label: Callable[..., str], before: str, after: str) -> None:
        original = getattr(place, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            what = label(*args, **kwargs)
            if before:
                self._reached(f"{what}/{before}")
            result = original(*args, **kwargs)
            self._reached(f"{what}/{after}")
            return result

        setattr(place, name, wrapped)

    def _stage(self, uri: str) -> str:
        uid = uri.split("/")[-2]
        parts = self._written.setdefault(uid, [])
        if uri not in parts:
            parts.append(uri)
        number = parts.index(uri) + 1 if "/state/" in uri else 1
        return f"stage/{uid}" + (f".{number}" if number > 1 else "")

    def _checkpoint(self, number: int) -> str:
        if number in self._checkpoints:
            return f"checkpoint/{self._checkpoints[number]}"
        if number not in self._asked:
            self._asked.append(number)
        return f"asked/{self._asked.index(number) + 1}"

    def _wrap_entries(self) -> None:
        steps, original = self, Journal.append

        def append(self: Journal, command: Any) -> Any:
            asked = command(self.state) if callable(command) else command
            what, before, after = ENTRIES[type(asked)]
            labels = steps._labels(what, asked)
            for label in labels:
                steps._reached(f"{label}/{before}")
            answer = original(self, command)
            if isinstance(asked, c.Trigger):
                steps._checkpoints[self.state.next_id - 1] = steps._times["checkpoint"]
            for label in labels:
                steps._reached(f"{label}/{after}")
            return answer

        Journal.append = append  # type: ignore[method-assign]

    def _labels(self, what: str, command: c.Command) -> list[str]:
        if isinstance(command, c.Condemn | c.Forget):
            return [self._retired(number) for number in command.ids]
        if isinstance(command, c.Trigger):
            self._times[what] += 1
        if isinstance(command, c.Complete | c.Abort | c.ConfirmCommits | c.ConfirmPublished):
            return [self._checkpoint(command.id)]
        return [what if what in ("attempt", "query") else f"{what}/{self._times[what]}"]

    def _retired(self, number: int) -> str:
        """The first checkpoint that is condemned has number 1. Several may be deleted at once, beside the script."""
        with self._retiring:
            return f"retire/{self._condemned.setdefault(number, len(self._condemned) + 1)}"

    def _wrap_writing(self) -> None:
        """``stage/<uid>/writing``: some rows are in the directory, and nothing is committed."""
        original = parquet_files.write

        def write(df: Any, uri: str, **options: Any) -> Any:
            over = threading.Event()
            watching = threading.Thread(target=self._see_files, args=(uri, over), daemon=True)
            watching.start()
            written = original(df, uri, **options)
            over.set()
            watching.join()
            return written

        parquet_files.write = write

    def _see_files(self, uri: str, over: threading.Event) -> None:
        seen, pause = (_seen_in_s3(uri), 0.05) if uri.startswith("s3a:") else (_seen_in_folder(uri), 0.001)
        while not over.wait(pause) and not seen():
            pass
        self._reached(f"{self._stage(uri)}/writing")

    def _wrap_values(self) -> None:
        steps, original = self, values.Value.set

        def set_(self: values.Value, value: Any) -> None:
            original(self, value)
            name = f"value/{self._uid}"
            steps._times[name] += 1
            steps._reached(f"{name}/set-{steps._times[name]}")

        values.Value.set = set_  # type: ignore[method-assign]


def _seen_in_folder(uri: str) -> Callable[[], bool]:
    folder = Path(uri.removeprefix("file://"))
    return lambda: any(path.is_file() for path in folder.rglob("*"))


def _seen_in_s3(uri: str) -> Callable[[], bool]:
    """There a file appears when it is whole."""
    store = open_store(uri)
    return lambda: any(True for _ in store.list(""))


def _number(seal: str) -> int:
    return int(seal.split("/")[-2].removeprefix("chk-"))


def _kept(snapshot: kept_files.FilesSnapshot) -> str:
    return f"files/{snapshot._record.uid}"


def main(action: str, point: str, script: str, *arguments: str) -> None:
    records = action in ("record", "time")
    Steps(recorder(Path(point), timed=action == "time") if records else at(point, ACTIONS[action])).watch()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
