"""The lines about the loops of a script. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.text.units import coded, duration, fitting, plural, some

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP160": "A loop goes on after its finished turns, with what they have left.",
    "CKP161": "The finished turns of a loop are run again. The line says what changed.",
    "CKP162": "Items that the history has done were not done again.",
    "CKP163": "A loop goes on after turns that another version of the application has run.",
    "CKP166": "Items that the run had done are open again. Its script ended before their loop did. A later run can do them.",
    "CKP167": "The list of a loop has fewer items than turns are finished. What these turns have left is kept.",
    "CKP168": "Turns of another version of the application have used a state that this version has not. Its name may be wrong.",
}
SHOWN = 5  # items in a line


def goes_on(uid: str, turns: int, work_s: float, restored: str) -> str:
    """Say that a loop goes on after turns that an earlier attempt has run."""
    done = f"{plural(turns, 'turn')} of {restored}, {duration(work_s)} of work not run again"
    return coded(f"loop '{uid}': goes on after turn {turns}; {done}", "CKP160")


def begins_anew(uid: str, turns: int, why: str, reopened: Sequence[str] = ()) -> str:
    """Say that finished turns are run again; ``why`` names the change. ``reopened`` are the items of a history that are open again."""
    text = f"loop '{uid}': its {plural(turns, 'turn')} {fitting(turns, 'are')} run again. {why[:1].upper()}{why[1:].rstrip('.')}."
    if reopened:
        text += f" Open again, so give {fitting(len(reopened), 'them')} once more: {some(reopened, SHOWN)}"
    return coded(text, "CKP161")


def shorter(uid: str, count: int, turns: int, again: str) -> str:
    """Say that the list of a loop has only ``count`` items now. ``again`` is the command with which the run starts over."""
    text = (
        f"loop '{uid}': its list ends after {plural(count, 'item')} now, and {plural(turns, 'turn')} {fitting(turns, 'are')} finished. What"
        f" all of them have left is kept. To run the loop with the shorter list: {again}"
    )
    return coded(text, "CKP167")


def left_out(uid: str, loop: LoopDetail) -> str:
    """Say that the finished turns of a loop count no longer, because the script has ended without the loop."""
    why = "because only an attempt that did not finish has run them, and the script has ended without this loop"
    written = [f"'{sink}'" for sink, count in loop.writes.items() if count > loop.writes_before.get(sink, 0)]
    gone = (
        f". What they have written to sink {', '.join(written)} is taken out, too, or the job is refused"
        if written
        else ""
    )
    return coded(f"loop '{uid}': finished turns dropped ({loop.turns}), {why}{gone}", "CKP427")


def still_open(uid: str, reopened: Sequence[str]) -> str:
    """Say which items of a history are open again at the end of the script, which has not come to the end of their loop."""
    count = len(reopened)
    were, are, they, them = (fitting(count, word) for word in ("were", "are", "they", "them"))
    text = (
        f"loop '{uid}': {plural(count, 'item')} of this run {were} done, and {are} open again (CKP161): {some(reopened, SHOWN)}. The script"
        f" has ended before the end of this loop, so no frame and no value has what {they} had changed. The next run does {them},"
        f" if its list has {them}"
    )
    return coded(text, "CKP166")


def not_done_again(uid: str, items: Sequence[str]) -> str:
    """Say which items of a history were done before."""
    names = some(items, SHOWN)
    return coded(
        f"loop '{uid}': {plural(len(items), 'item')} of this history done before, not done again: {names}", "CKP162"
    )


def other_application(uid: str, turns: int, again: str) -> str:
    """Say that the application has changed since turns were run. ``again`` is the command with which the run starts over."""
    were, they, are, them = (fitting(turns, word) for word in ("were", "They", "are", "them"))
    text = (
        f"loop '{uid}': the application changed since its {plural(turns, 'turn')} {were} run. {they} {are} kept, as the state of a query is."
        f" To run {them} again: {again}"
    )
    return coded(text, "CKP163")


def other_names(uid: str, missing: Sequence[str], new: Sequence[str], again: str) -> str:
    """Say that turns use ``new`` states, and not those that turns of another version have used. Each is named with its kind."""
    text = (
        f"loop '{uid}': turns of another version of the application have used {some(missing, SHOWN)}. This version has not so far, and has"
        f" used the new {some(new, SHOWN)}. If a name is wrong, correct it, and run the turns again: {again}"
    )
    return coded(text, "CKP168")


def not_used_by_this_version(missing: Sequence[str], again: str) -> str:
    """Say which states turns of another version have made in this run, and the script has not used. Each is named with its kind."""
    text = (
        f"Turns of another version of the application have used {some(missing, SHOWN)}, and this version has not. What they have left is"
        f" kept. If a name is wrong, run the turns again: {again}"
    )
    return coded(text, "CKP168")
