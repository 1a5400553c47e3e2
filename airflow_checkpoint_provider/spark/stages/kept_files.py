"""Files that the script keeps: written once in a run by a function of the script, stored, and given out again. Runs in the Spark driver.

A fitted model and an index are files in a folder. Nobody can compare what a function writes, so it is reused as a stage is that was given as
a function. The files never change: a retry compares each byte before the script gets the folder.
"""

from __future__ import annotations

import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark import SparkFiles

from airflow_checkpoint_provider.coordinator.files import compare_all, sizes_in, with_checksums
from airflow_checkpoint_provider.errors import Damaged, StoreError, WrongUse
from airflow_checkpoint_provider.protocol.fields import is_file_name
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import FILES, FilesDetail, Measures, StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest, Verdict, decide_files
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, Once, StoredSnapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import LocalStore, Store, copy_all
from airflow_checkpoint_provider.text import state_messages
from airflow_checkpoint_provider.text.units import some

Write = Callable[[str], object]
"""A function of the script that puts files below a path."""


@dataclass(frozen=True)
class Folder:
    """A folder of files in a store."""

    store: Store
    key: str

    @classmethod
    def on_disk(cls) -> Folder:
        """Return a new folder on the driver's disk, below ``spark.local.dir``: Spark deletes it when the application ends."""
        return cls(LocalStore(tempfile.mkdtemp(prefix="checkpointed-", dir=SparkFiles.getRootDirectory())), "files")

    @property
    def uri(self) -> str:
        """Return its URI as Spark reads it. Raises ``StoreMisconfigured`` if a link leads there."""
        return spark_uri(self.store, self.key)

    @property
    def path(self) -> str:
        """Return its path on the driver's disk."""
        return f"{self.store.uri.removeprefix('file://')}/{self.key}"

    def copy_to(self, other: Folder, files: Iterable[File]) -> None:
        """Copy files by their names."""
        copy_all(self.store, other.store, ((f"{self.key}/{file.name}", f"{other.key}/{file.name}") for file in files))

    def download(self, other: Folder, files: tuple[File, ...]) -> str:
        """Copy acknowledged files to the driver's disk, compare all their bytes, and return their path. Raises ``Damaged``."""
        self.copy_to(other, files)
        other.verify(files)
        _read_only(Path(other.path))
        return other.path

    def verify(self, files: tuple[File, ...]) -> None:
        """Compare all bytes with what was acknowledged. Raises ``Damaged``."""
        compare_all(self.store, self.key, files)


class KeptFiles:
    """The folders of files of one attempt."""

    def __init__(self, attempt: Attempt, states: States, stages: Stages, checkpointer: Checkpointer) -> None:
        self._attempt, self._states, self._stages, self._checkpointer = attempt, states, stages, checkpointer

    def run(self, uid: str, write: Write, version: str | None, *, local: bool) -> str:
        """Return the folder of ``uid``: with the stored files if they can be reused, else ``write`` puts files there now."""
        with self._stages.alone(uid, _barrier(uid)):
            request, prior = self._stages.request(uid, version), self._states.folder(uid)
            if prior:
                verdict = decide_files(prior[1], request)
                if verdict.reuse:
                    return self._reuse(*prior, verdict, local=local)
                say(state_messages.files_written_again(uid, verdict.why))
            return self._write(uid, write, request, local=local)

    def _stored(self, path: str) -> Folder:
        return Folder(self._attempt.store, self._attempt.keys.file_set(path))

    def _given(self, folder: Folder, path: str, snapshot: StateSnapshot) -> str:
        """Give out the stored folder at ``path`` as Spark reads it."""
        self._attempt.file_sets.read(path)
        self._stages.reads(folder.uri, snapshot.uid, snapshot.file_sets[0].identity)
        return folder.uri

    # -- reused ------------------------------------------------------------------------------------------------------

    def _reuse(self, snapshot: StateSnapshot, detail: FilesDetail, verdict: Verdict, *, local: bool) -> str:
        """Return the folder with the stored files, once all their bytes are compared. Raises ``Damaged``."""
        file_set = snapshot.file_sets[0]
        stored = self._stored(file_set.path)
        try:
            if local:
                path = stored.download(Folder.on_disk(), file_set.files)
            else:
                stored.verify(file_set.files)
                path = self._given(stored, file_set.path, snapshot)
        except Damaged as error:
            raise Damaged(f"folder '{snapshot.uid}': {error.message}. Restore an older checkpoint") from None
        self._stages.pass_reused(snapshot, detail)
        say(state_messages.files_reused(snapshot, verdict.why, str(self._attempt.restored.point)))
        return path

    # -- written -----------------------------------------------------------------------------------------------------

    def _write(self, uid: str, write: Write, request: StageRequest, *, local: bool) -> str:
        """Let ``write`` put files into a new folder, list them, and begin the checkpoint of the barrier."""
        file_set_at = file_set_path(uid, self._attempt.epoch, secrets.token_hex(8))
        self._attempt.file_sets.write(file_set_at)
        stored = self._stored(file_set_at)
        source = Folder.on_disk() if local else stored
        if local:
            Path(source.path).mkdir()
        began = time.monotonic()
        with self._stages.described(uid, _barrier(uid)), _shared(source):
            write(source.path if local else source.uri)
        worked = time.monotonic() - began
        files = _listed(uid, source, on_disk=local)
        with self._checkpointer.barrier_ahead():
            self._checkpointer.await_in_flight()
            snapshot = StateSnapshot(
                uid=uid,
                kind=FILES,
                run=self._states.run,
                file_sets=(FileSet(path=file_set_at, files=files),),
                measures=Measures(
                    barrier=_barrier(uid),
                    work_s=worked,
                    sync_s=time.monotonic() - began - worked,
                    new_bytes=sum(file.bytes for file in files),
                ),
                files=self._detail(request, local=local),
            )
            made = FilesSnapshot(snapshot, source, stored)
            self._states.hand_out(snapshot, made)
            self._checkpointer.beside(made.begin)
            self._attempt.heart.update(lambda beat: replace(beat, computed=(*beat.computed, uid)))
            self._checkpointer.checkpoint(_barrier(uid))
        return source.path if local else self._given(stored, file_set_at, snapshot)

    def _detail(self, request: StageRequest, *, local: bool) -> FilesDetail:
        return FilesDetail(
            application=request.application,
            version=request.version,
            earlier_stages=request.earlier_stages,
            stage_before=next(reversed(request.handed_out), None),
            values=dict(self._states.values),
            generation=request.generation,
            local=local,
        )


class FilesSnapshot:
    """Files that were written in this attempt. ``record`` lists them without their checksums. ``source`` is where the script uses them."""

    def __init__(self, record: StateSnapshot, source: Folder, stored: Folder) -> None:
        self._record, self._source, self._stored = record, source, stored
        self._files = Once(self._brought_in)

    def begin(self) -> None:
        """Bring the files into the store now, if it answers."""
        with suppress(StoreError):  # a checkpoint tries it again, and logs the error
            self._files.get(lambda: None)

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Bring the files into the store, unless they are written there, and return the record with the checksum of each."""
        file_set = replace(self._record.file_sets[0], files=self._files.get(check))
        return StoredSnapshot(replace(self._record, file_sets=(file_set,))).write(check, folder)

    def _brought_in(self) -> tuple[File, ...]:
        files = self._record.file_sets[0].files
        if self._source is self._stored:
            self._stored.store.make_durable(f"{self._stored.key}/{file.name}" for file in files)
        else:
            self._source.copy_to(self._stored, files)
        return with_checksums(self._source.store, self._source.key, files)

    def discard(self) -> None:
        """Do nothing: the files stay."""


# -- the files that the script has written -----------------------------------------------------------------------------


def _barrier(uid: str) -> str:
    return f"folder '{uid}'"


def _listed(uid: str, source: Folder, *, on_disk: bool) -> tuple[File, ...]:
    """Return the files of a folder that was just written. Raises ``WrongUse`` if there is none, and for files that would be lost."""
    if on_disk:
        _refuse_lost(uid, Path(source.path))
        _read_only(Path(source.path))
    sizes = sizes_in(source.store, source.key)
    if not sizes:
        raise WrongUse(f"files '{uid}': the function has written no file below the path that it was given")
    if odd := sorted(name for name in sizes if not is_file_name(name)):
        raise WrongUse(f"files '{uid}': a name cannot be stored: {some([repr(name) for name in odd])}. Rename the file")
    return tuple(File(name=name, bytes=size, rows=0) for name, size in sorted(sizes.items()))


def _refuse_lost(uid: str, folder: Path) -> None:
    """Raise ``WrongUse`` for what a store does not hold: links, hidden files, and empty folders, which a retry would miss."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink():
            raise WrongUse(f"files '{uid}': {name} is a link. Write the file itself there")
        if path.name.startswith("."):
            raise WrongUse(f"files '{uid}': the name of {name} begins with a dot, so it is not stored. Rename it")
        if path.is_dir() and not any(path.iterdir()):
            raise WrongUse(f"files '{uid}': {name} is an empty folder, which is not stored. Put a file there")


def _read_only(folder: Path) -> None:
    """Let nobody change the files by mistake: a retry gets them as they were stored."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


@contextmanager
def _shared(folder: Folder) -> Iterator[None]:
    """Give files that Spark writes inside this block below a local root the rights of the directory above, as all other files there have."""
    if not isinstance(folder.store, LocalStore):
        yield
        return
    path = Path(folder.path)
    above = next(parent for parent in path.parents if parent.exists())
    rights = stat.S_IMODE(above.stat().st_mode) & 0o777
    yield
    between = (parent for parent in path.parents if above in parent.parents)
    for made in (*between, path, *path.rglob("*")):
        with suppress(
            FileNotFoundError, PermissionError
        ):  # nothing was written, or an executor of another user has written it
            made.chmod(rights if made.is_dir() else rights & 0o666)
