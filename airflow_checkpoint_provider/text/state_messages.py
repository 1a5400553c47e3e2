"""Log lines of a driver about its stages, its application and the restored states. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Run
from airflow_checkpoint_provider.protocol.metadata import StateEntry, StateSnapshot, kind_in_words
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.text.units import batch, coded, day_and_time, duration, fitting, plural, size, some

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP120": "A stage was not computed again. Its stored rows were used.",
    "CKP121": "A stage was computed again although its rows were stored. The line says what changed.",
    "CKP122": "The plan of a stage is sorted, but a stage does not keep the order of rows.",
    "CKP123": "The options interval and min_pause pace only streaming queries and loops. Each end of a stage is a checkpoint.",
    "CKP124": "The script failed at a stored file. The driver has read the file once more, and the line says what it found.",
    "CKP126": "Stages were reused, and the line names what was not compared with the earlier attempt.",
    "CKP127": "The inputs of a stage have other files, or another version, than when its rows were stored. The rows were used.",
    "CKP128": "A reused stage holds values that Spark drew. A stage that shares them gets the same ones, other rows do not.",
    "CKP129": "The metrics of an Observation are not there if its stage is reused: its get raises an error.",
    "CKP164": "A registered object raised an error, or has not returned, when the outcome was known. The job continues.",
    "CKP426": "Some restored state was not used in this run and was kept.",
    "CKP427": "Some restored state was not used in this run and was dropped. The line says why.",
    "CKP428": "A reused stage had stored another value than the script has set. The line has both, and says which one counts.",
}

LONGEST_VALUE = 60  # characters of a value in a line


def reached(state: StateEntry, barrier: str) -> str:
    """Return up to where a checkpoint holds a state: the writes to a sink, the batch of a query, else ``barrier``."""
    if sink := state.sink:
        return f"{plural(sink.transactions, 'write')} to {sink.target}{', gated' if sink.gated else ''}"
    return barrier if state.batch is None else batch(state.batch)


def stage_reused(stage: StateSnapshot, why: str = "", *, restored: str = "", unseen: str = "") -> str:
    """Say that stored rows were used; ``why`` is given if reuse needs a reason, ``unseen`` names inputs that were not compared.
    ``restored`` is the point from which the attempt started: rows that were copied from there are in no checkpoint of this history yet.
    """
    rows = plural(stage.rows, "row")
    return reused(stage, f"stage '{stage.uid}': reused", rows, why, restored=restored, unseen=unseen)


def reused(state: StateSnapshot, what: str, stored: str, why: str = "", *, restored: str = "", unseen: str = "") -> str:
    """Say that ``stored`` rows or files were used; ``what`` begins the line. The other arguments are those of ``stage_reused``."""
    number = state.measures.checkpoint
    origin = f"chk-{number}" if number else restored
    because = (f"; {why}" if why else "") + (f"; not compared: {unseen}" if unseen else "")
    work = duration(state.measures.work_s)
    return coded(f"{what}, {stored} of {origin}, {work} of work not run again{because}", "CKP120")


def stage_recomputed(uid: str, why: str) -> str:
    """Say that a stage was computed again; ``why`` names the change."""
    return coded(f"stage '{uid}': recomputed. {why[:1].upper()}{why[1:].rstrip('.')}.", "CKP121")


def files_reused(folder: StateSnapshot, why: str, restored: str) -> str:
    """Say that stored files were used; ``why`` is given if reuse needs a reason. ``restored``: see ``stage_reused``."""
    count = sum(len(file_set.files) for file_set in folder.file_sets)
    stored = f"{plural(count, 'file')} ({size(folder.bytes)})"
    return reused(folder, f"folder '{folder.uid}': reused", stored, why, restored=restored)


def files_written_again(uid: str, why: str) -> str:
    """Say that files are written again; ``why`` names the change."""
    return coded(f"folder '{uid}': written again. {why[:1].upper()}{why[1:].rstrip('.')}.", "CKP121")


def not_compared(names: Sequence[str]) -> str:
    """Say once in an attempt which parts of the program or of its inputs may have changed unseen."""
    text = f"not compared with the attempt whose rows are reused: {some(names)}"
    return coded(printable(f"{text}. If one of them changed, give the stages another version="), "CKP126")


def draws_kept(uid: str) -> str:
    """Say that a reused stage holds values that an earlier driver has drawn, and which rows fit to them."""
    text = (
        f"stage '{uid}' holds values that Spark drew in an earlier attempt. Stages that share them get the same values. Rows"
        " that are counted or written without a stage have new ones: put what must fit together into stages."
    )
    return coded(text, "CKP128")


def draws_taken_over(uid: str, partner: str) -> str:
    """Say that a stage is computed with the values that were drawn for a reused stage."""
    return coded(f"stage '{uid}' is computed with the values that Spark drew for stage '{partner}'.", "CKP128")


def rdd_sampled(uid: str) -> str:
    """Say that a reused stage holds a sample that PySpark drew inside of an RDD, where nothing can be replaced."""
    text = f"stage '{uid}' holds a sample of an RDD. Other stages fit to it only if the sample has a seed: rdd.sample(False, 0.1, seed=1)."
    return coded(text, "CKP128")


def checkpoint_shared(uid: str, partner: str) -> str:
    """Say that two stages read one frame, which may have other rows than in the earlier attempt."""
    text = (
        f"stage '{uid}' reads a frame that Spark has checkpointed, as the reused stage '{partner}' does. If values were drawn before"
        " that checkpoint, their rows do not fit together: use job.stage() in the place of checkpoint()."
    )
    return coded(text, "CKP128")


def inputs_moved(uid: str, moved: str) -> str:
    """Say that the inputs of a stage moved, and its stored rows were used nevertheless."""
    return coded(f"stage '{uid}': its stored rows are used though its inputs moved: {moved}", "CKP127")


def stage_sorted(uid: str) -> str:
    """Say that the order of a sorted stage is lost."""
    text = f"stage '{uid}': its plan is sorted, but a stage does not keep the order of rows. Sort after the stage."
    return coded(text, "CKP122")


def value_differs(uid: str, now: Any, stored: Any, barrier: str, attempt: int, why: str) -> str:
    """Say which of two values counts at a reused stage: the script's, and ``why``; or the stored one if ``why`` is empty."""
    by_stage = f"{barrier} of attempt {attempt} had stored {_short(stored)}"
    by_script = f"the script set {_short(now)}, {by_stage}; {_short(now)} counts, because {why}"
    return coded(
        f"value '{uid}': {by_script if why else f'the script has not set it; {by_stage}, which counts'}", "CKP428"
    )


def _short(value: Any) -> str:
    text = canonical(value).decode()
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def metrics_not_kept(uid: str, name: str, why: str) -> str:
    """Say that the metrics of an Observation are not stored with its stage."""
    text = f"stage '{uid}': the metrics of its {_observation(name)} are not stored, because {why}"
    return coded(f"{text}. If a retry reuses the stage, get raises an error", "CKP129")


def metrics_missing(uid: str, name: str, why: str) -> str:
    """Say that an Observation of a reused stage stays empty."""
    text = f"stage '{uid}': its {_observation(name)} stays empty, because the stage is reused and {why}"
    return coded(f"{text}. Its get raises an error. Keep the number in a value", "CKP129")


def _observation(name: str) -> str:
    return f"Observation '{name}'" if name else "Observation"


def file_is_whole(uid: str, where: str) -> str:
    """Say that the script could not read a file, and that the file is now as it was written."""
    text = f"state '{uid}': the script failed at {where}. Read again, its size, footer and pages are as they were written, so"
    return coded(f"{text} the storage may have failed for a moment. A retry reads it again.", "CKP124")


def file_is_out_of_reach(uid: str, where: str, why: str) -> str:
    """Say that a file cannot be read now either, so that nobody knows whether it is damaged."""
    text = f"state '{uid}': the script failed at {where}, and it cannot be read now either, so it may be whole: {why}."
    return coded(f"{text} A retry reads it again.", "CKP124")


def file_is_not_needed(damage: str) -> str:
    """Say that a file is damaged, and that a retry does not read it."""
    text = f"{damage}. The checkpoint from which a retry starts does not hold it: a retry computes the stage again."
    return coded(text, "CKP124")


def not_paced(config: CheckpointConfig) -> list[str]:
    """Say that nothing paces the checkpoints of stages; nothing where both options have their defaults."""
    default = CheckpointConfig()
    paced = (config.interval_s, config.min_pause_s) != (default.interval_s, default.min_pause_s)
    line = "every end of a stage is a checkpoint: interval and min_pause pace only streaming queries and loops."
    return [coded(line, "CKP123")] if paced else []


def settings_alone(job: str, job_source: str, root: str, root_source: str) -> str:
    """Return the first line of a script without Airflow: its job and its root, each with the source of the setting."""
    return f"job '{job}' ({job_source}), checkpoints below {root} ({root_source})"


def no_file() -> str:
    """Say that a program without a file cannot be compared with an earlier one."""
    return (
        "This program has no file (a notebook, a REPL, -c or standard input), so it counts as changed at each start."
        " Stages that call Python are computed again. To keep the rows of a stage, give it a version="
    )


def application_line(digest: str, parts: Mapping[str, str], before: AttemptRecord | None, run: Run) -> str:
    """Say whether the application is the one that the attempt ``before`` ran, and which ``parts`` changed if that is known."""
    if before is None:
        return f"first attempt of this job; the run began {day_and_time(run.started_at)}"
    if before.application_digest == digest:
        return f"application unchanged since attempt {before.epoch}"
    return f"application changed since attempt {before.epoch}{_changed_parts(before.application_parts, parts)}"


def _changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if not before or not now:
        return ""
    changed = [name for name in sorted(before.keys() & now.keys()) if before[name] != now[name]]
    added = [f"{name} (new)" for name in sorted(now.keys() - before.keys())]
    removed = [f"{name} (no longer used)" for name in sorted(before.keys() - now.keys())]
    return printable(f": {some([*changed, *added, *removed])}")


def computed_imports(computed: str, folder: str) -> str:
    """Say that the imports of a script cannot be known, so that all modules beside it count as the application."""
    return (
        f"All Python files below {folder} count as the application, because the script computes what it imports ({computed})."
        " A change of any of them is a change of the application"
    )


def too_many_modules(computed: str, limit: int, folder: str) -> str:
    """Say that the imports of a script cannot be known, and too many modules lie beside it."""
    return (
        f"The script computes what it imports ({computed}), and more than {limit} Python files lie below {folder}. Only the script,"
        " its other imports and --py-files count as the application. A change of another module is not seen:"
        " keep the script in a folder of its own"
    )


def handed_on(states: Sequence[StateSnapshot]) -> str:
    """Say which restored states the script did not use and the next checkpoints still contain."""
    uids = ", ".join(f'"{state.uid}"' for state in states)
    drop = f"To drop {fitting(len(states), 'them')}, set allow_non_restored_state=[{uids}]"
    return coded(f"{_unused(states)} kept: {_named(states)}. {drop}", "CKP426")


def left_behind(states: Sequence[StateSnapshot]) -> str:
    """Say which restored states the script did not use and the next checkpoints do not contain."""
    return coded(f"{_unused(states)} dropped, as allow_non_restored_state says: {_named(states)}", "CKP427")


def _unused(states: Sequence[StateSnapshot]) -> str:
    if len(states) == 1:
        return "A restored state that this run did not use was"
    return f"{len(states)} restored states that this run did not use were"


def unfinished_left_behind(states: Sequence[StateSnapshot]) -> str:
    """Say which values of earlier attempts of this run the next checkpoints do not contain."""
    why = "because only an attempt that did not finish has set it"
    return coded(f"{_unused(states)} dropped, {why}: {_named(states)}", "CKP427")


def _named(states: Sequence[StateSnapshot]) -> str:
    sizes = (f" ({size(state.bytes)})" if state.bytes else "" for state in states)
    names = (f"{kind_in_words(state.kind)} '{state.uid}'" for state in states)
    return some([f"{name}{held}" for name, held in zip(names, sizes, strict=True)])


def object_failed(uid: str, call: str, error: str) -> str:
    """Say that a method of a registered object has raised an error, which changes no outcome."""
    return coded(f"'{uid}': {call}: {error}; the job continues", "CKP164")


def object_hangs(uid: str) -> str:
    """Say that a registered object is still in its notification at the end of the job."""
    return coded(f"'{uid}': a notification has not returned. The job ends without waiting for it.", "CKP164")
