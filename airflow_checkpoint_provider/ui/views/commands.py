"""The commands that do, from a terminal, what a page only shows. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.query_details import FILE_SINKS
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import Name, item_option, without_names_as_options


@dataclass(frozen=True)
class ShownCommand:
    """A command to copy. ``purpose`` says what it does; ``changes``, whether it changes something."""

    purpose: str
    text: str
    changes: bool = False

    @property
    def effect(self) -> str:
        """Return what a person must know before they paste it."""
        if not self.changes:
            return ""
        return f"changes something without {DRY_RUN}" if self.text.endswith(DRY_RUN) else "changes something"

    @property
    def key(self) -> str:
        """Return a short name that depends only on the command."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:10]


DRY_RUN = "--dry-run"
ITEM = "--item="  # before the names: behind an option, argparse takes no further name
SCRIPT = ("--", "spark-submit", "app.py")


def of_storage(connection: str) -> list[ShownCommand]:
    """Return the command for all jobs of a connection."""
    return [ShownCommand("List the jobs", _line(connection, ("jobs",)))]


class Commands:
    """The commands for one history; ``run`` is the one that the page shows, if not all.

    Those that stop, go back or delete come with ``--dry-run``. Words in capitals are to be replaced.
    """

    def __init__(self, connection: str, state: State, run: str = "") -> None:
        self._connection = connection
        self._job, self._state = Name(state.job), state
        self._item = tuple(item_option(state))
        self._names = (self._job, *map(Name, filter(None, [state.scope])), *self._item)
        self._shown = (*self._names, Name(run)) if not state.scope and state.run(run) else self._names

    def of_job(self) -> list[ShownCommand]:
        """Return the commands for the job, or its run."""
        return [
            self._reads("Print the table of checkpoints", "show", *self._shown),
            self._reads("Print statistics", "show", *self._names, "--statistics"),
            self._reads("Tell why the newest attempt started where it did", "story", *self._shown),
            self._reads("List all checkpoints and savepoints", "list", *self._names),
            *(self._of_driver() if self._state.running() else []),
            *self._of_next_start(),
            *([] if self._state.scope else self._of_queries()),
            self._changes("Delete checkpoints that no policy keeps, and leftovers", "prune", *self._names, DRY_RUN),
        ]  # fmt: skip

    def of_attempt(self, epoch: int) -> list[ShownCommand]:
        """Return the command for an attempt."""
        return [self._reads("Print this story", "story", *self._names, "--attempt", str(epoch))]

    def of_checkpoint(self, checkpoint: Checkpoint, pointer: str | None) -> list[ShownCommand]:
        """Return the commands for a checkpoint at ``pointer``; None if it does not exist any more."""
        name = f"chk-{checkpoint.id}"
        commands = [self._reads("Print this checkpoint", "show", *self._names, Name(name))]
        if pointer is None:
            return commands
        return [
            *commands,
            self._reads("Verify its files", "verify", pointer),
            self._reads("Verify all rows of its files", "verify", pointer, "--deep"),
            *self._of_going_back(checkpoint, name),
            *(self._of_savepoint(pointer) if checkpoint.savepoint else []),
        ]

    def _of_driver(self) -> list[ShownCommand]:
        """Return the commands for a running driver."""
        stop = ("stop", *self._names)
        return [
            self._changes("Trigger a checkpoint", "trigger", *self._names),
            self._changes("Trigger a checkpoint that shares no file with older ones", "trigger", *self._names, "--full"),
            self._changes("Trigger a savepoint", "savepoint", *self._names),
            self._changes("Trigger a savepoint with a note, which no policy deletes", "savepoint", *self._names, "--name", "NOTE", "--pinned"),
            self._changes("Trigger a savepoint in another place", "savepoint", *self._names, "--to", "URI"),
            self._changes("Stop the job with a savepoint", *stop, DRY_RUN),
            self._changes("Stop it after its queries have read all rows that have arrived", *stop, "--drain", DRY_RUN),
            self._changes("Stop it with a savepoint in another place", *stop, "--to", "URI", DRY_RUN),
        ]  # fmt: skip

    def _of_next_start(self) -> list[ShownCommand]:
        restore = ("restore", *self._names, "--from")
        return [
            self._changes("Start the next attempt from the newest checkpoint, also if the job is suspended", *restore, "latest", DRY_RUN),
            self._changes("Let the next attempt start where the run began", *restore, "run-start", DRY_RUN),
            self._changes("Let it start from nothing", *restore, "none", DRY_RUN),
            self._changes("Let it start from a savepoint of another job, and own that", *restore, "POINTER", "--claim", DRY_RUN),
        ]  # fmt: skip

    def _of_queries(self) -> list[ShownCommand]:
        """Return the commands for streaming queries, which need one history for all runs."""
        return [
            self._reads("Check another script against the newest checkpoint, whose code runs", "preflight", self._job, *self._item, *SCRIPT),
            *(self._release(f"Continue query '{query.uid}' without this package", query.uid) for query in self._state.queries),
            *(command for query in self._state.queries for command in self._of_sink(query)),
            self._release("Give back a query that adopt= has fenced, and that has never started here", "QUERY", "--adopted", "LOCATION"),
        ]  # fmt: skip

    def _of_sink(self, query: QueryRecord) -> list[ShownCommand]:
        """Return the commands for the files that queries took out of a file sink when they went back."""
        sink = query.newest.sink
        if sink is None or query.newest.format not in FILE_SINKS:
            return []
        rewound = ("rewound", Name(sink))
        return [
            self._reads(f"List the files that '{query.uid}' took out of its sink when it went back", *rewound),
            self._changes("Put them back, while the job is stopped", *rewound, "--put-back", DRY_RUN),
            self._changes("Delete them for ever", *rewound, "--delete", DRY_RUN),
        ]

    def _release(self, purpose: str, uid: str, *more: str) -> ShownCommand:
        return self._changes(purpose, "release", self._job, Name(uid), *self._item, "--to", "FOLDER", *more, DRY_RUN)

    def _of_going_back(self, checkpoint: Checkpoint, name: str) -> list[ShownCommand]:
        restore = ("restore", *self._names, "--from", name)
        commands = [
            self._changes("Restore this checkpoint", *restore, DRY_RUN),
            self._changes("Restore it, with another name for a state", *restore, "--rename", "OLD=NEW", DRY_RUN),
        ]
        if any(entry.batch is not None for entry in checkpoint.states):
            commands += [
                self._changes("Restore it; moves files that its queries have written since out of their sinks", *restore, "--rewind-sink", DRY_RUN),
                self._reads("Check another script against it, whose code runs", "preflight", self._job, *self._item, "--from", name, *SCRIPT),
            ]  # fmt: skip
        return commands

    def _of_savepoint(self, pointer: str) -> list[ShownCommand]:
        return [
            self._changes("Delete it", "dispose", pointer, DRY_RUN),
            self._changes("Forget it, if somebody has moved or removed it", "dispose", pointer, "--forget", DRY_RUN),
        ]

    def _reads(self, purpose: str, *words: str) -> ShownCommand:
        return ShownCommand(purpose, _line(self._connection, words))

    def _changes(self, purpose: str, *words: str) -> ShownCommand:
        return ShownCommand(purpose, _line(self._connection, words), changes=True)


def _line(connection: str, words: tuple[str, ...]) -> str:
    named = () if connection == CheckpointStorageHook.default_conn_name else ("--conn-id", connection)
    verb, *rest = words
    item = [word for word in rest if word.startswith(ITEM) and not isinstance(word, Name)]
    first, last = without_names_as_options([word for word in rest if word not in item])
    return printable(shlex.join(("airflow", "checkpoints", verb, *named, *item, *first, *last)))
