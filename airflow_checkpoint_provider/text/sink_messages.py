"""The lines about the sinks of a script. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkDetail, Transaction
from airflow_checkpoint_provider.text.units import coded, fitting, plural, size, some

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP150": "The rows of a write are committed: readers of the sink see them.",
    "CKP151": "A write was not done again, because the restored checkpoint holds it.",
    "CKP152": "A write of the restored checkpoint is done again, or not kept. The line says what changed. Its rows are replaced.",
    "CKP153": "Rows that attempts had prepared in a sink, and that the restore point does not hold, were removed.",
    "CKP154": "A commit failed. The driver tries it again.",
    "CKP155": "The script writes a sink to another target than the restored checkpoint says.",
    "CKP156": "A completed checkpoint holds rows that nobody has committed to their sink. The next start of that run does it.",
    "CKP157": "A write of the restored checkpoint is not there any more. The line says whether it is done again.",
    "CKP158": "A gated sink holds rows that no finalized gated checkpoint has published. The job waits for one.",
    "CKP159": "A job goes back. The rows that later runs have committed to its sink were taken out.",
    "CKP169": "A sink holds writes of the run that its script has not done. They are taken out, or the job lets them stay.",
    "CKP165": "A Delta table lies in S3, and its log is written by a class for one driver. Two drivers may lose a commit.",
}


def committed(uid: str, transaction: Transaction, target: str, position: str) -> str:
    """Say that readers see the rows of a write."""
    if transaction.removes:
        gone = plural(len(transaction.replaces), "write")
        return coded(f"sink '{uid}': the rows of {gone} are taken out of {target} ({position})", "CKP150")
    rows = f"{plural(transaction.rows, 'row')}, {size(transaction.bytes)}"
    return coded(f"sink '{uid}': {rows} committed to {target} ({position})", "CKP150")


def write_skipped(uid: str, held: Transaction) -> str:
    """Say that the restore point holds a write."""
    state = "committed" if held.committed else "prepared"
    return coded(
        f"sink '{uid}': write {held.write + 1} of this run is {state} already ({plural(held.rows, 'row')}); not done again",
        "CKP151",
    )


def write_repeated(uid: str, held: Transaction, why: str) -> str:
    """Say why a write that the restore point holds is done again."""
    return coded(
        f"sink '{uid}': write {held.write + 1} of this run is done again: {why}. Its {plural(held.rows, 'row')} {fitting(held.rows, 'are')} replaced",
        "CKP152",
    )


def write_overtaken(uid: str, held: Transaction, before: int) -> str:
    """Say that a write that the restore point holds does not stay, because an earlier one takes its place."""
    return coded(
        f"sink '{uid}': write {held.write + 1} of this run ({plural(held.rows, 'row')}) is not kept: write {before} before it is done again, and"
        " takes its place. If the script still does it, it is done again",
        "CKP152",
    )


def leftovers_aborted(uid: str, count: int) -> str:
    """Say that rows were removed which nobody will commit."""
    return coded(
        f"sink '{uid}': {plural(count, 'transaction')} of attempts that are over aborted. The restore point does not hold them",
        "CKP153",
    )


def leftovers_unknown(uid: str, history: str, count: int, error: CheckpointError) -> str:
    """Say that leftovers stay, because the journal of their history cannot be read."""
    return coded(
        f"sink '{uid}': {plural(count, 'transaction')} of {history} {fitting(count, 'stay')} prepared, because its journal cannot be read:"
        f" {error.message}",
        "CKP153",
    )


def commit_failed(error: CheckpointError) -> str:
    """Say that a commit failed and is tried again."""
    return coded(
        f"a commit to a sink failed: {error.message}. The job goes on, and the commit is tried again", "CKP154"
    )


def not_committed(count: int, error: CheckpointError | None) -> str:
    """Return the text of the error at the end of a job whose rows could not be committed."""
    why = f": {error.message}" if error else ""
    return (
        f"{plural(count, 'write')} of completed checkpoints could not be committed{why}. No rows are lost: the next attempt commits them"
        " before it does anything else"
    )


def old_target_waits(uid: str, before: SinkDetail, target: str) -> str:
    """Return the text of the error for a sink that writes elsewhere before the rows for its old target are committed."""
    return (
        f"sink '{uid}' is to write to {target}, and the restored checkpoint holds rows for {before.target} that may not be committed. They would"
        " be lost. Start the job once with the old target: it commits them first. Or give the new target another uid, and drop the old one:"
        f' allow_non_restored_state=["{uid}"]'
    )


def other_name(uid: str, other: str, target: str, again: str) -> str:
    """Return the text of the error for a sink to whose target the run has written under another name. ``again``: the command that renames."""
    return (
        f"sink '{uid}' is to write to {target}, and this run has written there as sink '{other}': the rows would be there twice. Nothing was"
        f" computed. Write '{other}' in the script. If the sink has another name now, and the restored checkpoint has it: `{again}`. To leave the"
        f" rows beside the new ones, set {_allowing(other)}"
    )


def target_changed(uid: str, before: SinkDetail, target: str) -> str:
    """Say that a sink writes elsewhere from now on."""
    return coded(
        f"sink '{uid}' writes to {target}. The restored checkpoint holds writes to {before.target}",
        "CKP155",
    )


def commit_is_due(uid: str, history: str, count: int) -> str:
    """Say that a completed checkpoint of another run holds rows that nobody has committed."""
    return coded(
        f"sink '{uid}': a completed checkpoint of {history} holds {plural(count, 'write')} that nobody has committed. Its rows are missing in"
        " the target. Clear the task of that run: it commits them, and computes nothing that it has stored",
        "CKP156",
    )


def uncommitted(state: State) -> list[str]:
    """Say which rows of completed checkpoints nobody has committed, though no driver of the job is there to do it."""
    if state.running() or state.starting():
        return []
    return [
        coded(
            f"sink '{sink.uid}': {plural(sink.uncommitted, 'write')} of completed checkpoints may not be committed to {sink.target}: the"
            " driver ended before it said so. Start the job again, or clear its task: it commits them first, and computes nothing that it has"
            " stored",
            "CKP156",
        )
        for sink in state.sinks
        if sink.uncommitted
    ]


def aborted_meanwhile(names: Sequence[str]) -> str:
    """Say that somebody has aborted writes that this attempt was to commit."""
    return f"{plural(len(names), 'write')} ({some(names)}) aborted by somebody else while waiting. The next attempt says what becomes of them"


def found_aborted(uid: str, transaction: Transaction, *, again: bool) -> str:
    """Say that the rows of a write of the restore point are nowhere any more. ``again``: this run does it again."""
    missing = (
        f"This run does not do it again: {plural(transaction.rows, 'row')} will be missing. To do it again, restore a checkpoint from before"
        " that run"
    )
    return coded(
        f"sink '{uid}': write {transaction.write + 1} of run {transaction.run} was aborted, taken out or replaced since its checkpoint."
        f" {'It is done again' if again else missing}",
        "CKP157",
    )


def gate_awaited(uids: list[str], timeout_s: float) -> str:
    """Say that the end of a job waits for a gated checkpoint."""
    names = ", ".join(f"'{uid}'" for uid in uids)
    return coded(
        f"gated sink {names}: rows wait for a gated checkpoint that is finalized (TriggerCheckpointOperator(gated=True), then"
        f" FinalizeCheckpointOperator). The job waits {timeout_s:g} s for it, then it fails and keeps its state",
        "CKP158",
    )


def one_driver_only(writer: str, target: str) -> str:
    """Say that Delta cannot tell two drivers apart where the table lies. ``writer``: "sink 'rows'"."""
    return coded(
        f"{writer}: Delta writes the log of {target} with S3SingleDriverLogStore. A driver that was replaced and still runs may lose a"
        " commit there, or write rows twice. Use a log store with DynamoDB (spark.delta.logStore.s3a.impl)",
        "CKP165",
    )


def rows_without_column(uid: str, target: str, count: int) -> str:
    """Return the text of the error for rows of the run that were written before the sink had its column."""
    return (
        f"sink '{uid}': {target} holds {plural(count, 'write')} of this run that run_column does not mark, and the run is computed again. The rows"
        " would be there twice. Nothing was computed. If the sink had another run_column, write that one. Else remove the rows, give the sink"
        f" another uid, and set {_allowing(uid)}"
    )


def no_run_column(target: str, count: int, going_back: str) -> str:
    """Return the text of the error for rows that cannot be told from others. ``going_back`` names the statements that help."""
    return (
        f"{target}: nobody can tell the rows of {plural(count, 'write')} from others, because run_column does not mark them. Take them out"
        f" yourself: {going_back}. Then start again"
    )


def writes_forgotten(uid: str, target: str) -> str:
    """Return the text of the error for a table whose old commits are deleted, so that nobody knows what it holds of a run."""
    return (
        f"sink '{uid}': the old commits of {target} are deleted (their retention is over), so nobody can tell which rows this job has"
        " written there. Rows could be there twice. Nothing was computed. Remove the rows that will be computed again, and give the sink"
        ' another uid. With run_column=, or mode="overwrite", this does not happen'
    )


def add_run_column(uid: str, target: str, column: str) -> str:
    """Return the text of the error for a table without the column of runs."""
    return f"sink '{uid}': run_column='{column}', and {target} has no such column. Add it once: ALTER TABLE {target} ADD COLUMN {column} STRING"


def not_written_again(target: str, reason: str) -> str:
    """Return the text of the error for rows that the table does not take a second time."""
    return (
        f"{target}: others have committed since the rows were written, so they are written again, and that failed: {reason}. It is tried again."
        " Spark's own log may say more"
    )


def branch_is_gone(target: str, branch: str) -> str:
    """Return the text of the error for staged rows that somebody has removed."""
    return (
        f"{target}: its branch {branch} is gone, and the rows in it were never published. Somebody removed it, or"
        " history.expire.max-ref-age-ms of the table is too short. Start from a checkpoint before this write"
    )


def snapshots_expired(target: str, name: str) -> str:
    """Return the text of the error for a commit that nobody can find any more."""
    return (
        f"{target}: snapshots have expired since transaction {name} was staged, so nobody can tell whether it is committed. Look for its rows."
        " Nothing was written"
    )


def overwritten_since(target: str) -> str:
    """Return the text of the error for rows that come after a later run's."""
    return (
        f"{target}: a run that began later has overwritten it, so the rows of this run were not published. If they shall replace the later"
        " ones, clear this task: then it begins anew"
    )


def numbers_stand(uid: str, why: str) -> str:
    """Return the text of the error for a number under which a table has other rows already."""
    return (
        f"job.txn('{uid}'): {why}, and this run has written with these numbers already. Delta would leave the new rows out, without an error."
        " Nothing was written. Remove the rows of this run from the table and give txn another uid; or write with job.sink and"
        ' DeltaSink(..., run_column="run"), which replaces them'
    )


def left_out(states: Sequence[StateSnapshot]) -> str:
    """Return the text of the error for sinks with rows that wait for their commit, and that the script does not open."""
    names = ", ".join(f"'{state.uid}'" for state in states)
    targets = ", ".join(state.sink.target for state in states if state.sink)
    return (
        f"the restored checkpoint holds rows for sink {names} ({targets}) that may not be committed, and the script does not open it. They would"
        f" be lost. Open the sink as before. To drop the rows, set allow_non_restored_state=[{', '.join(f'{state.uid!r}' for state in states)}]"
    )


def sink_is_ahead(uid: str, target: str, count: int, runs: Sequence[str], again: str) -> str:
    """Return the text of the error for a job that goes back to before the commits of other runs. ``again``: the command that allows it."""
    return (
        f"sink '{uid}': {target} holds {plural(count, 'write')} of later runs ({some(runs)}) that the restored checkpoint does not hold. When"
        ' those runs are run again, these rows would be there twice; with mode="overwrite", readers would see them until this run writes.'
        f" Nothing was written. To take these rows out: `{again}`, or"
        " RestoreOperator(rewind_sink=True)"
    )


def taken_out(uid: str, target: str, count: int, runs: Sequence[str]) -> str:
    """Say which rows a job has taken out of a sink, because it goes back."""
    return coded(
        f"sink '{uid}': {plural(count, 'write')} of later runs ({some(runs)}) {fitting(count, 'were')} taken out of {target}, because the job"
        " goes back",
        "CKP159",
    )


def rows_stand(uid: str, target: str, count: int) -> str:
    """Return the text of the error for a run that would append its rows a second time."""
    return (
        f"sink '{uid}': {target} holds {plural(count, 'write')} of this run, and the run is computed again. The rows would be there twice. Nothing"
        ' was computed. Remove them, and clear the task again. With run_column=..., or mode="overwrite", a sink replaces the rows that'
        " it writes from then on"
    )


def not_done_any_more(uid: str, target: str, count: int) -> str:
    """Say that rows are taken out that an earlier attempt has written and the script has not."""
    return coded(
        f"sink '{uid}': {target} holds {plural(count, 'write')} of earlier attempts of this run that the script has not done. The next checkpoint"
        f" takes {fitting(count, 'them')} out",
        "CKP169",
    )


def surplus_stands(uid: str, target: str, count: int, why: str) -> str:
    """Return the text of the error for writes of earlier attempts that cannot be taken out. ``why`` says what helps."""
    return (
        f"sink '{uid}': {target} holds {plural(count, 'write')} of earlier attempts of this run that the script has not done. The run cannot end"
        f" well: {why}. To leave the rows as they are, set {_allowing(uid)}"
    )


def numbers_left(uid: str, count: int) -> str:
    """Return the text of the error for numbers that the script has not used again. ``count``: how many there are."""
    return (
        f"job.txn('{uid}'): earlier attempts of this run have made {plural(count, 'write')} more than the script. Their rows stand, and Delta may"
        " have left out new ones, because the numbers have shifted. Bring the script back as it was. Or remove the rows of this run from the"
        f" table, give txn another uid, and set {_allowing(uid)}"
    )


def rows_overwritten(again: str) -> str:
    """Say why the rows of a later overwrite cannot be taken out. ``again``: the command that runs all again."""
    return f"they have taken the place of what the script writes. Bring the script back as it was; or write all again: `{again}`"


def not_opened(uid: str) -> str:
    """Return the text of the error for a sink that the script does not open, and to which this run has written."""
    return (
        f"readers of sink '{uid}' see rows that earlier attempts of this run have written, and the script does not open it. Open it: what the"
        " script has not written is taken out then. If the sink has another name now, restore it with --rename OLD=NEW. To leave the rows as"
        f" they are, set {_allowing(uid)}"
    )


def not_opened_after_clear(uid: str, target: str) -> str:
    """Say that a run has written to a sink before it was computed again, and does not open it now."""
    return coded(
        f"sink '{uid}': this run has written to {target} before it was computed again, and the script does not open it now. Rows may stand there."
        " If they shall go, open it: what the script has not written is taken out",
        "CKP169",
    )


def nothing_written(uid: str, target: str) -> str:
    """Say that a run has overwritten a table before it was computed again, and writes nothing to it now."""
    return coded(
        f"sink '{uid}': this run has overwritten {target} before it was computed again, and the script writes nothing now. If no later run has"
        " overwritten it, those rows stand. If they shall go, write(df.limit(0))",
        "CKP169",
    )


def rows_stay(uid: str) -> str:
    """Say that rows stay that the script has not written, because the job allows it."""
    return coded(
        f"sink '{uid}': rows that earlier attempts of this run have written stay, and the script has not written them."
        " allow_non_restored_state allows it",
        "CKP169",
    )


def _allowing(uid: str) -> str:
    return f'allow_non_restored_state=["{uid}"]'


def computed_again(uid: str, target: str, held: Transaction, why: str) -> str:
    """Return the text of the error for a committed write whose rows are computed again."""
    return (
        f"sink '{uid}': write {held.write + 1} of this run, {plural(held.rows, 'row')}, is committed to {target}, and it would be done again:"
        f' {why}. The rows would be there twice. Bring the script back as it was. With run_column=..., or mode="overwrite", a sink replaces'
        " the rows that it writes from then on"
    )
