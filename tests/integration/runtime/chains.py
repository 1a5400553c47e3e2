"""The job ``tests/jobs/chain.py``, whose queries read what others write: cut again and again, and continued from each cut. Runs on Linux."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, Checkpoint
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from tests.integration.runtime.savepoint_requests import ask, found
from tests.support.delta import files_by_batch
from tests.support.runs import Home, Running
from tests.support.streams import add_files, expected, expected_keys
from tests.support.waiting import wait_until

COLUMNS = {"first": "id", "second": "id", "third": "key"}
PATIENCE = 120  # seconds


def source(home: Home) -> Path:
    return Path(f"{home.out}-in")


def written(out: Path) -> dict[int, list[Path]]:
    """Return the files of each batch of a sink. A compacted entry counts with what it adds."""
    if (out / "_delta_log").is_dir():
        return files_by_batch(out)
    batches, seen = dict[int, list[Path]](), set[Path]()
    entries = (out / "_spark_metadata").glob("[0-9]*")
    for entry in sorted(entries, key=lambda file: (int(file.name.removesuffix(".compact")), len(file.name))):
        _, *lines = entry.read_text().splitlines()
        paths = [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]
        batches.setdefault(int(entry.name.removesuffix(".compact")), []).extend(p for p in paths if p not in seen)
        seen.update(paths)
    return batches


def values(out: Path, uid: str, batches: range | None = None) -> list[Any]:
    """Return what a query wrote, in these batches."""
    found = written(out / uid)
    files = [file for number, paths in found.items() if batches is None or number in batches for file in paths]
    return [value for file in files for value in pyarrow.parquet.ParquetFile(file).read()[COLUMNS[uid]].to_pylist()]


def goal(uid: str, files: int) -> list[Any]:
    return list(expected_keys(files)) if uid == "third" else list(expected(files))


def queries(home: Home, checkpoint: Checkpoint) -> Mapping[str, QueryDetail]:
    states = home.coordinator().read_seal(checkpoint).states.values()
    return {state.uid: state.query for state in states if state.query}


@dataclass
class Files:
    """The files that have arrived in a folder."""

    folder: Path
    number: int = 0

    def add(self, more: int = 1) -> None:
        add_files(self.folder, *range(self.number, self.number + more))
        self.number += more


def savepoint(home: Home, running: Running, token: str, meanwhile: Callable[[], None] = lambda: None) -> Checkpoint:
    """Ask for a savepoint as soon as all queries are started, and wait until it is there. Call ``meanwhile`` again and again."""

    def ended() -> bool:
        meanwhile()
        return found(home, number).published or found(home, number).status == ABORTED

    wait_until(lambda: "STARTED" in running.said(), PATIENCE, running.said)
    number = ask(home, running, "savepoint", lambda _: True, token=token)
    wait_until(ended, PATIENCE, running.said)
    taken = found(home, number)
    assert taken.published, (taken, running.said())
    return taken


def cut_again_and_again(home: Home, rounds: int) -> tuple[list[Checkpoint], int]:
    """Return savepoints that were taken while files arrived, and the number of files. The driver is killed in the end."""
    home.env["CHAIN_FOREVER"] = "1"
    arrived = Files(source(home))
    arrived.add(3)
    with home.started() as running:
        wait_until(lambda: written(home.out / "third"), PATIENCE, running.said)
        taken = []
        for number in range(rounds):
            arrived.add(4)
            more = arrived.add if "CHAIN_LATE" in home.env else lambda: None  # a late look waits for more batches
            taken.append(savepoint(home, running, f"savepoint {number}", more))
        running.send(signal.SIGKILL)
        running.wait()
    for name in ("CHAIN_FOREVER", "CHAIN_LATE"):
        home.env.pop(name, None)
    return taken, arrived.number


def run_to_the_end(home: Home, files: int) -> None:
    ended = home.run()
    assert ended.code == 0, ended.log
    for uid in COLUMNS:
        assert sorted(values(home.out, uid)) == goal(uid, files), uid


def forked(home: Home, taken: list[Checkpoint]) -> list[dict[str, Counter[Any]]]:
    """Let a job start from each savepoint, and run to its end. Return, of each, what it wrote after what the original had written."""
    home.env |= {"CHAIN_IN": str(source(home)), "CHAIN_FORKS": " ".join(one.target or "" for one in taken)}
    ended = home.run()
    assert ended.code == 0, ended.log
    found = []
    for number, one in enumerate(taken):
        of_fork = {}
        for uid, query in queries(home, one).items():
            before = values(home.out, uid, range(query.batch + 1))
            after = values(home.out / str(number), uid, range(query.batch + 1, 10_000))
            of_fork[uid] = Counter([*before, *after])
        found.append(of_fork)
    return found


def once(files: int) -> dict[str, list[Any]]:
    return {uid: goal(uid, files) for uid in COLUMNS}


def in_order(fork: dict[str, Counter[Any]]) -> dict[str, list[Any]]:
    return {uid: sorted(rows.elements()) for uid, rows in fork.items()}


def in_flight(home: Home, checkpoint: Checkpoint) -> int:
    """Return the number of files in flight."""
    edges = [edge for query in queries(home, checkpoint).values() for edge in query.edges]
    assert not any(edge.ahead for edge in edges)
    return sum(len(edge.in_flight) for edge in edges)


def newest_log(home: Home) -> str:
    return max(
        home.folder.glob("driver-*/log"), key=lambda log: int(log.parent.name.removeprefix("driver-"))
    ).read_text()
