"""The verbs that change a history: each prints what it will do, and asks. Runs anywhere."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.output import Report, write_lines
from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.restore_target import RestoreTarget
from airflow_checkpoint_provider.coordinator.savepoint import Disposed
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import (
    CheckpointNotFound,
    InvalidConfig,
    Refused,
    SavepointDisposed,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import title
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.storage.base import exists
from airflow_checkpoint_provider.text import manual_restore
from airflow_checkpoint_provider.text.units import NONE, plural, size

RESTORED = ("JOB", "RUN", "NEXT START", "BRANCH", "ENTRY")
DISPOSED = ("POINTER", "JOB", "FILES", "BYTES")
DRY_RUN = "nothing was changed (--dry-run)"
NO_TERMINAL = "Not a terminal: use --dry-run to preview, then --yes to confirm"


def _ask(question: str) -> str:
    """Return the answer of a person. The question goes to stderr, because stdout may be a pipe."""
    print(question, end="", file=sys.stderr, flush=True)
    return input()


@dataclass(frozen=True)
class Approval:
    """How a change is approved: ``dry_run`` makes none, ``yes`` needs no question, else ``ask`` returns a person's answer."""

    dry_run: bool = False
    yes: bool = False
    ask: Callable[[str], str] = _ask


@dataclass(frozen=True)
class RestoreSource:
    """The source of a restore. With ``claim`` the job owns the savepoint; ``rename`` maps uids there to uids of the job. With
    ``rewind_sink``, sinks of streaming queries may lose what they have got since.
    """

    text: str
    claim: bool = False
    rename: dict[str, str] = field(default_factory=dict)
    rewind_sink: bool = False


def parse_renames(pairs: Sequence[str]) -> dict[str, str]:
    """Return each ``OLD=NEW`` as old to new. Raises ``InvalidConfig`` for other forms, and for an OLD that stands twice."""
    renames: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old in renames:
            raise InvalidConfig(f"--rename {pair}: write OLD=NEW, each state of the checkpoint at most once")
        renames[old] = new
    return renames


def restore(
    store: Store, job: str, run: str | None, source: RestoreSource, approval: Approval, item: str | None = None
) -> Report:
    """Verify the source, fence a running attempt, and set where the next attempt starts."""
    found, key = locate.find_history(store, job, run, item)
    coordinator = open_history(store, found.keys.prefix, entry_author())
    going = RestoreTarget(coordinator, source.text, key or found.newest_run)
    base = going.verify(coordinator.journal.catch_up())
    names = going.names(source.rename)
    command = _restoring(going, base, source)
    if source.claim:
        savepoint.claim(coordinator, savepoint.claimable(base), entry_author().owner, utc_now(), dry_run=True)
    coordinator.journal.foresee(command)

    def lines() -> list[str]:
        return manual_restore.restored(
            going.state,
            going.restored,
            claim=source.claim,
            rename=names,
            rewind_sink=source.rewind_sink,
            back=going.going_back(names),
            again=going.read_again(names),
        )

    if approval.dry_run:
        return _report(found, base, lines(), DRY_RUN)
    confirm(job, lines(), approval)
    answer = coordinator.journal.append(
        lambda state: savepoint.claim_before_restore(coordinator, state, command(state), utc_now())
    )
    done = replace(found, state=coordinator.state)
    start = f"the next attempt of {title(done.state)} starts from {base or 'nothing'}"
    after = f"done (entry {answer.n}): {start}. {manual_restore.next_step(going.state)}"
    return _report(done, base, lines() if approval.yes else [], after)


def _restoring(going: RestoreTarget, base: Point | None, source: RestoreSource) -> Callable[[State], c.Restore]:
    """Return the restore of ``base``. It raises ``Refused`` if the source has become another checkpoint meanwhile."""
    token = _token()

    def command(state: State) -> c.Restore:
        if going.verify(state) != base:
            now = going.restored.point or "nothing"
            raise Refused(
                f"{source.text} now means {now}, not {base or 'nothing'}. Nothing was changed; run the command again"
            )
        reason = "restored by hand: checkpoints restore"
        return going.command(
            token,
            entry_author().owner,
            reason,
            claim=source.claim,
            rename=source.rename,
            rewind_sink=source.rewind_sink,
        )

    return command


def dispose(store: Store, pointer: str, approval: Approval, *, history_is_here: bool) -> Report:
    """Delete a savepoint, unless its job may still start from it. Raises ``Refused`` if that is unknown because ``store`` does
    not hold its history, but for a ``store`` that a person has named (``history_is_here``)."""
    preview = savepoint.dispose(store, pointer, entry_author().owner, utc_now(), dry_run=True)
    if not preview.job:
        return _disposed_before(store, preview, approval)
    if not history_is_here and not preview.own:
        raise Refused(
            f"{pointer}: the history of {preview.job} is not under {store.uri}, so it is unknown whether the job still needs this"
            " savepoint. Name the root of its checkpoints: --root URI before the verb, or of `airflow checkpoints` --conn-id ID. If the"
            " history was deleted, name the root where it was: then the files are deleted"
        )
    lines = [
        f"DISPOSE {preview.pointer}: a savepoint of {preview.job}, {plural(preview.files, 'file')}, {size(preview.bytes)}"
    ]
    if not preview.own:
        lines.append(f"its own history is not under {store.uri}: it was not checked whether its job still needs it")
    if approval.dry_run:
        return _to_dispose(preview, [*lines, DRY_RUN])
    confirm(preview.job, lines, approval)
    savepoint.dispose(store, pointer, entry_author().owner, utc_now())
    return _to_dispose(preview, [*(lines if approval.yes else []), "done"])


def forget(store: Store, text: str, approval: Approval) -> Report:
    """Let its history forget a savepoint that was moved or removed. Raises ``Refused`` if it is still there, and
    ``CheckpointNotFound`` if no history in ``store`` lists it."""
    pointer = SavepointPointer.parse(text)
    gone = savepoint.find_gone(store, pointer)
    if gone is None:
        if exists(store.beside(pointer.root), pointer.metadata):
            raise Refused(f"{pointer} is still there. Leave out --forget to delete it")
        raise CheckpointNotFound(
            f"{pointer}: no history under {store.uri} lists a savepoint there, so there is nothing to forget"
        )
    gone.forget(entry_author().owner, utc_now(), dry_run=True)
    lines = [f"FORGET {pointer}: savepoint chk-{gone.id} of {gone.job}, which is not there any more"]
    if not approval.dry_run:
        confirm(gone.job, lines, approval)
        gone.forget(entry_author().owner, utc_now())
    after = [DRY_RUN] if approval.dry_run else ["done"]
    data = {"pointer": str(pointer), "job": gone.job, "files": 0, "bytes": 0, "history": True}
    return Report(DISPOSED, [(str(pointer), gone.job, "0", "0")], data, [*lines, *after])


def _disposed_before(store: Store, preview: Disposed, approval: Approval) -> Report:
    """Finish the deletion of a savepoint, whose first deletion may have been killed. Needs no approval."""
    lines = list[str]()
    try:
        open_savepoint(preview.pointer, store)
    except SavepointDisposed as error:
        lines = [f"{preview.pointer} was disposed of at {error.about['at']} by {error.about['by']}"]
    if not approval.dry_run:
        savepoint.dispose(store, str(preview.pointer), entry_author().owner, utc_now())
    return _to_dispose(preview, lines)


def _to_dispose(preview: Disposed, lines: list[str]) -> Report:
    data = {
        "pointer": str(preview.pointer),
        "job": preview.job or None,
        "files": preview.files,
        "bytes": preview.bytes,
        "history": preview.own,
    }
    row = (str(preview.pointer), preview.job or NONE, str(preview.files), str(preview.bytes))
    return Report(DISPOSED, [row], data, lines)


def confirm(job: str, lines: list[str], approval: Approval, no_terminal: str = NO_TERMINAL) -> None:
    """Ask a person to type the job's name, unless ``approval`` says yes. Raises ``InvalidConfig`` without approval."""
    if approval.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidConfig(no_terminal)
    write_lines(lines, sys.stderr)
    try:
        answer = approval.ask("Type the job's name to continue: ")
    except (EOFError, KeyboardInterrupt):
        raise InvalidConfig("No answer; nothing was changed") from None
    if answer.strip() != job:
        raise InvalidConfig("That is not the job's name; nothing was changed")


def _report(found: FoundHistory, base: Point | None, lines: list[str], said: str) -> Report:
    state = found.state
    data = {
        "job": state.job,
        "run": found.newest_run,
        "next_start": str(base) if base else None,
        "branch": state.branch.number,
        "entry": state.n,
    }
    cells = tuple(str(value) if value is not None else "" for value in data.values())
    return Report(RESTORED, [cells], data, [*lines, said])


def entry_author() -> By:
    """Return who writes the entries: the user and the host."""
    return By("cli", f"{_user()}@{socket.gethostname()}", socket.gethostname())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return str(os.getuid())


def _token() -> Token:
    """Return a new token: each call of the command is a restore of its own."""
    return Token(dag="", run=secrets.token_hex(8), task="checkpoints restore")
