"""The commands that do, from a terminal, what a page only shows. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.protocol.state import Checkpoint, State


@dataclass(frozen=True)
class Command:
    """A command to copy. ``purpose`` says what it does; ``changes``, whether it changes something."""

    purpose: str
    text: str
    changes: bool = False


class Commands:
    """The commands for one history. Those that stop, go back or delete come with ``--dry-run``."""

    def __init__(self, connection: str, state: State) -> None:
        self._connection = connection
        self._run = [state.scope] if state.scope else []
        self._job, self._state = state.job, state

    def of_job(self) -> list[Command]:
        """Return the commands for the job, or its run."""
        commands = [
            self._reads("Print the table of checkpoints", "show", *self._names),
            self._reads("Print statistics", "show", *self._names, "--statistics"),
            self._reads("Tell why the newest attempt started where it did", "story", *self._names),
            self._reads("List all checkpoints and savepoints", "list", *self._names),
        ]
        if self._state.running():
            commands += [
                self._changes("Trigger a checkpoint", "trigger", *self._names),
                self._changes("Trigger a savepoint", "savepoint", *self._names),
                self._changes("Stop the job with a savepoint", "stop", *self._names, "--dry-run"),
            ]
        restore = ("restore", *self._names, "--from")
        return [
            *commands,
            self._changes("Let the next attempt start where the run began", *restore, "run-start", "--dry-run"),
            self._reads("Check another script against the newest checkpoint", "preflight", self._job, "--", "spark-submit", "app.py"),
            *(
                self._changes(f"Let query '{query.uid}' go on without checkpoints", "release", self._job, query.uid, "--to", "FOLDER", "--dry-run")
                for query in self._state.queries
            ),
            self._changes("Delete what has expired", "prune", *self._names, "--dry-run"),
        ]  # fmt: skip

    def of_checkpoint(self, checkpoint: Checkpoint, pointer: str | None) -> list[Command]:
        """Return the commands for a checkpoint at ``pointer``; None if it does not exist any more."""
        name = f"chk-{checkpoint.id}"
        commands = [self._reads("Print it", "show", *self._names, name)]
        if pointer is None:
            return commands
        commands += [
            self._reads("Verify all its files", "verify", pointer, "--deep"),
            self._changes("Go back to it", "restore", *self._names, "--from", name, "--dry-run"),
        ]
        if checkpoint.savepoint:
            commands.append(self._changes("Delete it", "dispose", pointer, "--dry-run"))
        return commands

    @property
    def _names(self) -> tuple[str, ...]:
        return (self._job, *self._run)

    def _reads(self, purpose: str, *words: str) -> Command:
        return Command(purpose, self._line(words))

    def _changes(self, purpose: str, *words: str) -> Command:
        return Command(purpose, self._line(words), changes=True)

    def _line(self, words: tuple[str, ...]) -> str:
        connection = (
            () if self._connection == CheckpointStorageHook.default_conn_name else ("--conn-id", self._connection)
        )
        verb, *rest = words
        return shlex.join(("airflow", "checkpoints", verb, *connection, *rest))
