"""Log lines of a driver about its queries and the sinks of queries. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.query_details import Edge
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import Name, command, item_option, keeping, restore, rewound
from airflow_checkpoint_provider.text.units import coded, plural, size

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP125": "A streaming query begins, or continues from the batch that the line names.",
    "CKP142": "A streaming query is not started yet. The savepoint holds it where it stands, without a drain.",
    "CKP143": "A query went back. The files that its sink has got since were moved into a folder of the sink, and can be put back.",
    "CKP144": "A query writes to another sink, and repeats a batch there that its earlier sink may hold, too.",
    "CKP145": "A query may give rows twice, or checkpoints may hold queries at different moments. The line says why.",
    "CKP146": "The table of a query has the rows of a batch twice, because an older driver has written them again.",
    "CKP147": "A query of the checkpoint does not run, and new checkpoints hold it as it was. The line says why.",
    "CKP148": "A table no longer knew the newest batch of a query. The mark of that batch was written again.",
    "CKP429": "A query begins, and another one is not started. If they are one query with two names, all rows are written again.",
}


def begins(uid: str, begun: int, committed: int, newest: Checkpoint | None, older: int) -> str:
    """Say which batch of a query is next. ``newest`` is the newest completed checkpoint, for comparison. ``older`` locations are kept."""
    if begun < 0:
        return coded(f"query '{uid}' starts from its beginning", "CKP125")
    needed = f". Newest checkpoint: chk-{newest.id} (not needed)" if newest else ""
    if begun == committed:
        return coded(f"query '{uid}' continues after batch {committed}{needed}", "CKP125")
    again = f"repeats batch {begun}, which an earlier attempt began and did not commit: it reads the same offsets"
    kept = (
        f". Until it is committed, {older} locations of earlier attempts stay, each with a copy of the state"
        if older > 1
        else ""
    )
    return coded(f"query '{uid}' {again}{kept}{needed}", "CKP125")


def perhaps_renamed(uid: str, format_: str, others: Sequence[str], state: State) -> str:
    """Say that a query begins, and that it may be one of ``others``, which are not started, under a new name."""
    names, old = " or ".join(f"'{other}'" for other in others), others[0]
    command_ = restore(state, "latest", "--rename", f"{old}=NEW")
    text = (
        f"query '{uid}' starts from its beginning and writes to {format_}, as query {names} of this job did, which is not started yet. Is it that"
        f" query under a new name? Then it writes all rows again: stop the job, and write '{old}' in the script as before. `{command_}` gives it"
        f" a name that no query of the job has had. If '{uid}' is a query of its own, start it after {names}, or set"
        f" {keeping(others)}"
    )
    return coded(text, "CKP429")


def batch_in_two_sinks(uid: str, batch: int, old: str, new: str) -> str:
    """Say that a begun batch is written to a new sink, and that its rows may lie in the old one."""
    text = (
        f"query '{uid}' writes to {new} from batch {batch} on. An earlier attempt began that batch and did not commit it, so {old} may hold"
        " its rows, too. Look for them before you read both together"
    )
    return coded(printable(text), "CKP144")


def restored(uid: str, batch: int, begun: int, where: str) -> str:
    """Say from which batch of a checkpoint a query goes on."""
    again = f"; batch {begun} had begun, and runs again with the same offsets" if begun > batch else ""
    return coded(f"query '{uid}' continues after batch {batch} of {where}{again}", "CKP125")


def adopted(uid: str, uri: str, state: State) -> str:
    """Say that a query is taken over from a location of its own, and how to undo that."""
    back = f"`{command('release', Name(state.job), Name(uid), *item_option(state), '--to', 'FOLDER', '--adopted', uri, state=state)}` undoes this"
    return coded(
        f"query '{uid}' is taken over from {uri}. If it still runs there, it ends before its next batch. {back}",
        "CKP125",
    )


def reads_again(uid: str, edge: Edge) -> str:
    """Say that rows will be doubled, because the checkpoint was taken at least once."""
    text = f"query '{uid}' had read {plural(edge.ahead, 'file')} of '{edge.upstream}' that the checkpoint does not hold"
    text += ' (mode="at_least_once").'
    return coded(f"{text} '{edge.upstream}' writes their rows again, and '{uid}' reads them twice", "CKP125")


def rescaled(uid: str, before: int, after: int, rows: str) -> str:
    """Say that the state of a query has another number of partitions. ``rows`` describes the content of its stores."""
    text = f"query '{uid}' has its state in {plural(after, 'partition')}, {before} before. Spark reads the same rows: {rows}"
    return coded(text, "CKP125")


def goes_back(uid: str, batch: int, where: str, next_number: int) -> str:
    """Say to which batch of a checkpoint a query goes back."""
    numbers = f"Its next batch is {next_number}, because no number is used twice"
    return coded(f"query '{uid}' goes back to batch {batch} of {where}. {numbers}", "CKP125")


def rows_moved_aside(uid: str, sink: str, files: int, size_: int, folder: str) -> str:
    """Say which files were taken out of the sink of a query that went back, and how to undo that."""
    moved = f"{plural(files, 'file')} ({size(size_)}) of its sink {sink} moved to {folder} in it"
    back = f"To put them back, stop the job: `{rewound(sink, '--put-back')}`"
    return coded(f"query '{uid}' goes back: {moved}. {back}", "CKP143")


def held(uid: str, batch: int, begun: int) -> str:
    """Say where a savepoint holds a query that is not started yet."""
    where = f"{'before' if batch < 0 else 'after'} batch {max(batch, 0)}"
    more = f"; batch {begun} had begun" if begun > batch else ""
    return coded(
        f"query '{uid}' is not started in this attempt. The savepoint holds it where it stands, {where}{more}", "CKP142"
    )


def dropped(uids: Sequence[str]) -> str:
    """Say that the last checkpoint does not hold queries that were not started, as the job says."""
    names = ", ".join(f"'{uid}'" for uid in uids)
    return coded(f"not started in this run, and dropped, as allow_non_restored_state says: {names}", "CKP427")


def not_drained(uids: Sequence[str]) -> str:
    """Say which queries a stop did not drain, because they are not started."""
    names = ", ".join(f"'{uid}'" for uid in uids)
    return coded(
        f"not started in this attempt, so not drained: {names}. The savepoint holds them where they stand", "CKP142"
    )


def at_least_once(uid: str, format_: str, note: str) -> str:
    """Say what a sink does not promise. ``note`` says what that costs."""
    return coded(f"query '{uid}' writes to {format_}: {note}.", "CKP145")


def sink_keeps_rows(uid: str, format_: str) -> str:
    """Say that a query goes back, and that its sink cannot take rows out."""
    return coded(f"query '{uid}' goes back, and its sink, {format_}, gets the rows since then again", "CKP145")


def not_in_after(uid: str, upstream: str) -> str:
    """Say that a query reads the rows of another one that it does not name."""
    text = f"query '{uid}' reads what '{upstream}' writes. Write start_query(..., after=[{upstream!r}]): else a checkpoint holds each of them"
    return coded(f"{text} at a moment of its own", "CKP145")


def batch_twice(uid: str, table: str, batch: int, snapshot: int) -> str:
    """Say that a table has rows twice. ``snapshot`` is the one of Iceberg that has them for the second time."""
    text = f"query '{uid}': its table {table} has the rows of batch {batch} twice. An older driver has written them again, in snapshot {snapshot}"
    return coded(text, "CKP146")


def not_awaited(uid: str, upstream: str) -> str:
    """Say that checkpoints no longer wait for a query that the script has not started. It reads the rows of ``upstream``."""
    text = f"query '{uid}' of the checkpoint is not started, and '{upstream}' runs, whose rows it reads. Checkpoints no longer wait for '{uid}'"
    return coded(f"{text}, and hold it as it was", "CKP147")


def cannot_be_read(uid: str, error: Exception) -> str:
    """Say that nobody knows where a query stands that is not started."""
    return printable(f"query '{uid}' is not started in this attempt, and cannot be read where it stands: {error}")


def held_as_before(uid: str, error: Exception) -> str:
    """Say that checkpoints hold a query as the checkpoint before, because it cannot be read."""
    return coded(f"{cannot_be_read(uid, error)}. Checkpoints hold it as the one before", "CKP147")


def marker_expired(uid: str, table: str, batch: int) -> str:
    """Say that a Delta table had forgotten its newest batch."""
    return coded(
        f"query '{uid}': the transaction marker of batch {batch} has expired in its table {table}; it is written again",
        "CKP148",
    )


def snapshots_expired(uid: str, table: str, batch: int) -> str:
    """Say that an Iceberg table had forgotten its newest batch."""
    return coded(
        f"query '{uid}': the snapshots of its batches have expired in its table {table}; a marker for batch {batch} is written",
        "CKP148",
    )


def new_sink(uid: str, batch: int, path: str | None) -> str:
    """Say that a query goes on in a sink without rows."""
    return coded(f"query '{uid}' continues after batch {batch} and writes to {path}, which is empty", "CKP125")


def starts_again(uid: str, batch: int) -> str:
    """Say that an older driver was faster with the batch that had begun."""
    return coded(f"query '{uid}': an older driver has finished batch {batch}. The query starts again", "CKP125")


def drains(uid: str) -> str:
    """Say that a query reads what is there, and then ends."""
    return printable(f"query '{uid}' is drained: it reads the rows that are there now, and ends")


def not_settled(uid: str, error: Exception) -> str:
    """Say that the older locations of a query stay for now."""
    return printable(
        f"query '{uid}': its older locations are kept for now. The next checkpoint tries to give them up: {error}"
    )
