"""Acts a driver without Spark: it attaches, computes one stage unless its checkpoint holds it, and ends. Runs where its task submits it.

``acted.py FOLDER --table NAME``, among the arguments of ``spark-submit``. It writes a line ``NAME`` to ``FOLDER/computed`` before its
checkpoint, and to ``FOLDER/loaded`` at its end. A file ``FOLDER/broken-NAME`` lets it fail after its checkpoint. With ``FOLDER/killing``, it
kills itself now and then, before it computes or after its checkpoint: once at each place.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.handover import LaunchSettings
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.storage import open_store
from tests.support.acknowledgements import acknowledgement, value

OFTEN = 0.15  # of a driver's death at a place


def settings(arguments: list[str]) -> LaunchSettings:
    confs = dict(given.split("=", 1) for name, given in pairwise(arguments) if name == "--conf")
    found = LaunchSettings.from_confs(confs)
    assert found
    return found


def note(path: Path, line: str) -> None:
    """Append a line, whole, whoever else writes."""
    with path.open("a") as file:
        file.write(f"{line}\n")


class Driver:
    def __init__(self, launch: LaunchSettings, folder: Path, table: str) -> None:
        self.launch, self.folder, self.table = launch, folder, table
        store = open_store(launch.root)
        journal = Journal(store, Keys(launch.history), By("driver", launch.token.owner, "here"))
        self.coordinator = Coordinator(journal)
        self.attach()
        epoch = self.coordinator.epoch
        assert epoch
        self.heart = Heart(store, self.coordinator.keys.attempt_beat(epoch), Beat(epoch=epoch, launch=launch.launch))

    def attach(self) -> None:
        config: dict[str, Any] = self.launch.checkpointing.to_json() if self.launch.checkpointing else {}
        start = c.StartAttempt(
            token=self.launch.token,
            try_number=self.launch.try_number,
            driver=f"{os.getpid()}",
            checkpointing=config,
        )
        self.coordinator.journal.catch_up()
        self.coordinator.journal.append(start)
        self.coordinator.epoch = self.coordinator.state.last_epoch

    def restored(self) -> str | None:
        """Return the table whose rows the restore point holds."""
        state = self.coordinator.state
        attempt = state.attempt(self.coordinator.epoch)
        point = attempt.restore_point if attempt else None
        checkpoint = state.checkpoint(point.id) if point else None
        return str(self.coordinator.read_seal(checkpoint).states["table"].value) if checkpoint else None

    def compute(self) -> None:
        note(self.folder / "computed", self.table)
        number = self.coordinator.trigger(Request(token=f"barrier of attempt {self.coordinator.epoch}"))
        state, inc = value("table", number, self.table), self.coordinator.state.incarnation
        assert self.coordinator.epoch
        run = self.launch.token.run
        acknowledged = acknowledgement(number, state, epoch=self.coordinator.epoch, inc=inc, run=run)
        self.coordinator.acknowledge(acknowledged)
        self.coordinator.complete(number)

    def die_perhaps(self, where: str) -> None:
        """Kill this process at a place, once for each table, in some of the cases."""
        mark = self.folder / f"died-{where}-{self.table}"
        drawn = (
            random.Random(f"{(self.folder / 'killing').read_text()} {where} {self.table}").random()
            if self.killing
            else 1
        )
        if drawn < OFTEN and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def killing(self) -> bool:
        return (self.folder / "killing").exists()

    def end(self, how: str) -> None:
        code = 0 if how == "finished" else 1
        assert self.coordinator.epoch
        self.coordinator.end_attempt(c.EndAttempt(epoch=self.coordinator.epoch, outcome=how, exit_code=code))

    def work(self) -> int:
        with self.heart:
            self.die_perhaps("before")
            restored = self.restored()
            if restored is None:
                self.compute()
            elif restored != self.table:
                note(self.folder / "swapped", f"{self.table} continued {restored}")
            self.die_perhaps("after")
            if (self.folder / f"broken-{self.table}").exists():
                self.end("failed")
                return 1
            note(self.folder / "loaded", self.table)
            self.end("finished")
        return 0


if __name__ == "__main__":
    folder, table = Path(sys.argv[-3]), sys.argv[-1]
    launched = settings(sys.argv)
    assert launched.token.item == table, "the arguments are those of another item"
    sys.exit(Driver(launched, folder, table).work())
