"""The verbs and their arguments, for both command lines. Runs anywhere; Airflow imports it at each of its commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HELP = "See the checkpoints of Spark jobs, and say where they start from"
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
        "help": "latest, run-start (where the run began), none, an id such as chk-7, or a pointer",
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
        (Argument(("pointer",), {"metavar": "POINTER", "help": "as `show JOB chk-7` prints it"}), _OUTPUT),
    ),
    Verb(
        "restore",
        "fix where the next attempt of a job starts",
        "Fences whatever runs, lifts a suspension, and fixes where the next attempt starts. Nothing is submitted: the next"
        " retry, run or clear does that. Asks first.",
        (_JOB, _RUN, _FROM, _ITEM, _DRY_RUN, _YES, _OUTPUT),
    ),
    Verb(
        "prune",
        "delete what nothing needs any more",
        "Deletes checkpoints that no retention policy keeps and what attempts that are over left behind; drivers and tasks do"
        " so by themselves, but not after they died. Asks first.",
        (_JOB, _RUN, _ITEM, _DRY_RUN, _YES, _OUTPUT),
    ),
)  # fmt: skip
