"""The verbs and their arguments, for both command lines. Runs anywhere; Airflow imports it at each of its commands."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from dataclasses import dataclass, field
from typing import Any

HELP = "See the checkpoints of Spark jobs, ask for some, and say where they start from"
LIMIT = 20
EXITS = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused, 4 not found, 5 denied by the store,"
    " 6 outcome unknown (read back before you act)."
)


@dataclass(frozen=True)
class Argument:
    """As ``argparse`` takes it."""

    flags: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verb:
    name: str
    help: str
    description: str
    arguments: tuple[Argument, ...]


_JOB = Argument(("job",), {"metavar": "JOB", "help": "job id, as `jobs` prints it"})
_RUN = Argument(("run",), {"metavar": "RUN", "nargs": "?", "help": "a run, as `list` prints it; by default the newest"})
_ID = Argument(
    ("id",), {"metavar": "ID", "nargs": "?", "help": "a checkpoint, such as chk-7; RUN may be left out before it"}
)
_ITEM = Argument(("--item",), {"help": "the item of a mapped task"})
_LIMIT = Argument(
    ("--limit",), {"type": int, "default": LIMIT, "metavar": "N", "help": f"how many of the newest, default {LIMIT}"}
)
_OUTPUT = Argument(
    ("-o", "--output"),
    {
        "choices": ("table", "json", "plain"),
        "default": "table",
        "help": "table for people, json, or plain: columns parted by tabs",
    },
)

_DRY_RUN = Argument(("--dry-run",), {"action": "store_true", "help": "say what would be done, and change nothing"})
_YES = Argument(("-y", "--yes"), {"action": "store_true", "help": "do not ask"})
_FROM = Argument(
    ("--from",),
    {
        "dest": "where",
        "required": True,
        "metavar": "WHERE",
        "help": "latest, run-start (where the run began), none, an id such as chk-7, or a pointer: also a savepoint's directory",
    },
)
_POINTER = Argument(("pointer",), {"metavar": "POINTER", "help": "as `show JOB chk-7` prints it"})
_FULL = Argument(("--full",), {"action": "store_true", "help": "every state is written anew, none is handed on"})
_WAIT = Argument(
    ("--wait",),
    {"action": BooleanOptionalAction, "default": True, "help": "until it has its outcome, which is the default"},
)
_TIMEOUT = Argument(
    ("--timeout",),
    {
        "metavar": "TIME",
        "help": "stop waiting after, for example, '30 min'; what was asked for stays. By default never",
    },
)
_TO = Argument(
    ("--to",), {"metavar": "URI", "help": "where the savepoint's own directory is made, by default <root>/savepoints"}
)
_NAME = Argument(("--name",), {"metavar": "TEXT", "help": "a note that `list` shows"})
_PINNED = Argument(("--pinned",), {"action": "store_true", "help": "no retention of a schedule deletes it"})
_DRAIN = Argument(("--drain",), {"action": "store_true", "help": "the data ends first: for a job that shall not go on"})
_CLAIM = Argument(
    ("--claim",),
    {"action": "store_true", "help": "the savepoint belongs to the job from now on, which deletes it one day"},
)
_RENAME = Argument(
    ("--rename",),
    {
        "action": "append",
        "default": [],
        "metavar": "OLD=NEW",
        "help": "the state OLD of the checkpoint is NEW in the job; may be given more than once",
    },
)
_STATISTICS = Argument(
    ("--statistics",),
    {
        "action": "store_true",
        "help": "counts, the latest of each, durations and sizes; as JSON in the shape of Flink's REST answers",
    },
)
_ATTEMPT = Argument(
    ("--attempt",),
    {"type": int, "metavar": "N", "help": "number of an attempt, as `list` prints it; by default the newest"},
)

VERBS = (
    Verb("jobs", "the jobs and where they stand", "Each job's newest run: its state, and where its next start goes on.", (_LIMIT, _OUTPUT)),
    Verb(
        "list",
        "the checkpoints of a job or of one run",
        "Checkpoints, newest first. Without RUN: of the newest runs.",
        (_JOB, _RUN, _ITEM, _LIMIT, _OUTPUT),
    ),
    Verb(
        "show",
        "the closing table of a run, or one checkpoint",
        "The table that closes the task's log, at any time; or one checkpoint with its states and its pointer. With"
        " --statistics: of the whole history that holds the run, or of one checkpoint's states.",
        (_JOB, _RUN, _ID, _ITEM, _STATISTICS, _OUTPUT),
    ),
    Verb(
        "story",
        "why there was a new attempt, and where it went on",
        "What stood first in the task's log, as far as the journal still knows it, and what became of the attempt: which"
        " checkpoints there were, who was fenced, what was not run again, what was aborted and why.",
        (_JOB, _RUN, _ATTEMPT, _ITEM, _OUTPUT),
    ),
    Verb(
        "verify",
        "whether a checkpoint is whole",
        "Compares its seal with the journal's digest, and the names and sizes of all its files. Reads no rows.",
        (_POINTER, _OUTPUT),
    ),
    Verb(
        "trigger",
        "ask a running job for a checkpoint",
        "The driver takes it at its next barrier. Waits for the outcome; whoever stops waiting takes nothing back.",
        (_JOB, _RUN, _FULL, _ITEM, _WAIT, _TIMEOUT, _OUTPUT),
    ),
    Verb(
        "savepoint",
        "ask a running job for a savepoint",
        "A self-contained copy of its state in a directory of its own, which nothing deletes but `dispose`. The driver takes it"
        " at its next barrier. Waits until it is published.",
        (_JOB, _RUN, _TO, _NAME, _PINNED, _ITEM, _WAIT, _TIMEOUT, _OUTPUT),
    ),
    Verb(
        "stop",
        "stop a running job with a savepoint",
        "The driver takes a savepoint at its next barrier and ends; from then on the job is suspended, so that nothing starts it"
        " again before `restore`. Asks first.",
        (_JOB, _RUN, _TO, _DRAIN, _ITEM, _DRY_RUN, _YES, _OUTPUT),
    ),
    Verb(
        "restore",
        "fix where the next attempt of a job starts",
        "Fences whatever runs, lifts a suspension, and fixes where the next attempt starts. Nothing is submitted: the next"
        " retry, run or clear does that. Asks first.",
        (_JOB, _RUN, _FROM, _CLAIM, _RENAME, _ITEM, _DRY_RUN, _YES, _OUTPUT),
    ),
    Verb(
        "dispose",
        "delete a savepoint",
        "Deletes the files of a savepoint, and lets its history forget it; refused while its job may still start from it. Asks"
        " first.",
        (_POINTER, _DRY_RUN, _YES, _OUTPUT),
    ),
    Verb(
        "prune",
        "delete what nothing needs any more",
        "Deletes checkpoints that no retention policy keeps and what attempts that are over left behind; drivers and tasks do"
        " so by themselves, but not after they died. Asks first.",
        (_JOB, _RUN, _ITEM, _DRY_RUN, _YES, _OUTPUT),
    ),
)  # fmt: skip
