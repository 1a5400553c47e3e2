"""What a restore does, said before it is done and after. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.state import Checkpoint, State
from airflow_checkpoint_provider.protocol.wording import headline, labelled, sealed, title
from airflow_checkpoint_provider.text.units import day_and_time, plural, size, some


def restored(
    state: State, restored: Restored, *, claim: bool = False, rename: Mapping[str, str] | None = None
) -> list[str]:
    """``state`` is as it was before; ``restored`` is what was named, as it was found and verified."""
    base = restored.point
    chosen = next((one for one in restored.candidates if one.verdict == "chosen"), None)
    history = title(state, state.runs[-1].key) if state.scope and state.runs else title(state)
    lines = [
        headline(f"RESTORE {history}: the next attempt starts from {base or 'nothing'}", "CKP104"),
        *([labelled("verified", _verified(chosen.checkpoint, chosen.files))] if chosen else []),
    ]
    if running := [f"attempt {one.epoch}" for one in state.living()]:
        lines.append(labelled("fenced", f"{some(running)}; whatever it still sends is refused from here on"))
    if beyond := _beyond(state, base):
        said = f'{some(beyond)}: listed, restorable by name, never again "latest"'
        lines.append(labelled("abandoned", said))
    if state.suspended:
        lines.append(labelled("lifted", f"the suspension ({state.suspended})"))
    if claim:
        lines.append(labelled("claimed", "the savepoint belongs to this job from now on, which deletes it one day"))
    lines += [labelled("renamed", f"'{old}' is '{new}' from now on") for old, new in (rename or {}).items()]
    return lines


def _verified(checkpoint: Checkpoint, files: int | None) -> str:
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}"
    there = f", all {plural(files, 'file')} there, sizes match" if files else ""
    return f"{sealed(day_and_time(checkpoint.completed_at))}, {held}{there}"


def _beyond(state: State, base: Point | None) -> list[str]:
    """What the current branch holds that is newer than the base."""
    own = [one.id for one in state.retained if one.branch == state.branch.number]
    below = base.id if base and base.id is not None and base.pointer is None else 0
    return [f"chk-{number}" for number in sorted(own) if number > below]


def left_by_restore(state: State) -> str:
    """To the task whose launch a restore has left; without the code, which the error brings."""
    where = state.restore_point() or "nothing"
    return (
        f"{title(state)}: a restore at {day_and_time(state.branch.at)} ({state.branch.reason}) has replaced this launch; the next"
        f" try starts from {where}. Where no retry is left: clear the task"
    )
