"""The files that a query takes out of its file sink when it goes back: moved aside, and put back by a person. Runs anywhere.

Nothing is deleted. ``<sink>/_rewound-<attempt>-<nonce>/`` gets the files at their paths below the sink, and:

* ``_manifest.json``: which files, their sizes, and which entries of the log a reader needed before;
* ``_log/``: these entries. They name all files of the sink as it was;
* ``_twice/``: files that were moved when their copy was there already.

Spark reads no folder whose name begins with an underscore. These are the steps. Any process may repeat each of them, also after a kill:

1. put the manifest, if there is none: it decides what is moved;
2. copy the entries of the log;
3. let the log end after all batches that anybody has begun, with the files that stay. From now on readers see only these;
4. move the files.

The entries of the log stay where they are. A reader begins with the newest compacted one, so it sees none of them, and a driver that was
suspended finds no free number. Spark deletes them later.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.errors import Damaged, Refused, TooLarge
from airflow_checkpoint_provider.file_sink.log import LOG, REWOUND, FileSinkLog, SinkFile, SinkFolder, files_in
from airflow_checkpoint_provider.protocol.fields import Batch, FileName, JobId, SinkEntry, Size, Time, Uid
from airflow_checkpoint_provider.protocol.records import VERSION, Record, added, checked
from airflow_checkpoint_provider.storage.base import LARGEST

MANIFEST, ENTRIES = "_manifest.json", "_log"
TWICE = "_twice"  # in the folder: what lay in its place and in the folder
SINCE = "-after"  # ends the name of the folder with the files that were written since, when others are put back


@dataclass(frozen=True, kw_only=True)
class RewoundFile(Record):
    """A file that was moved aside: its path below the sink, encoded as in the sink's log, and its size."""

    name: FileName
    bytes: Size


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """The files that were taken out of a sink when the query ``uid`` of ``job`` went back to ``batch``, and who did it.

    Since then the sink's log ends with batch ``number``. ``entries`` are the names of the log entries that a reader needed before, the
    oldest first.
    """

    v: int = VERSION
    job: JobId
    uid: Uid
    batch: Batch
    number: Batch
    at: Time
    by: str
    entries: tuple[SinkEntry, ...]
    files: tuple[RewoundFile, ...]
    item: str | None = added(None)  # of the job

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Aside:
    """A folder of a sink that holds the files that were taken out: its name, and its manifest."""

    name: str
    manifest: Manifest

    def key(self, key: str) -> str:
        """Return the key that a file of the sink has in this folder."""
        return f"{self.name}/{key}"


def aside_name(location: str) -> str:
    """Return the name of the folder for the files that a query takes out. The path of its ``location`` ends with the attempt and a nonce."""
    return REWOUND + location.rpartition("/")[2]


def found_aside(folder: SinkFolder, name: str) -> Aside | None:
    """Return the folder of that name; None if it has no manifest. Raises ``Damaged``."""
    if MANIFEST not in folder.names(name):
        return None
    text, _ = folder.read(f"{name}/{MANIFEST}")
    return Aside(name, Manifest.from_bytes(text.encode(), f"{folder.uri}/{name}/{MANIFEST}"))


def all_aside(folder: SinkFolder) -> list[Aside]:
    """Return all folders of a sink that hold files that were taken out, the newest first. Raises ``Damaged``."""
    found = [aside for name in _names(folder) if (aside := found_aside(folder, name))]
    return sorted(found, key=lambda aside: aside.manifest.number, reverse=True)


def without_manifest(folder: SinkFolder, found: Iterable[Aside]) -> list[str]:
    """Return the names of such folders that are not ``found``: somebody deleted the manifest, or a suspended driver went on after a person
    had deleted the folder.
    """
    known = {aside.name for aside in found}
    return [name for name in _names(folder) if name not in known]


def _names(folder: SinkFolder) -> list[str]:
    return [name for name in folder.names("") if name.startswith(REWOUND)]


# -- taking out ----------------------------------------------------------------------------------------------------------


def decide(log: FileSinkLog, name: str, wanted: Manifest) -> Aside:
    """Put the manifest, unless there is one. Return the folder with the manifest that is there. Raises ``TooLarge`` if it would name too
    many files.
    """
    body = checked(wanted)
    if len(body) > LARGEST:
        raise TooLarge(
            f"{len(wanted.files)} files of the sink {log.folder} would have to be moved, and one manifest cannot name them. Nothing was"
            " moved. Write to an empty path"
        )
    log.files_of.put(f"{name}/{MANIFEST}", body.decode())
    aside = found_aside(log.files_of, name)
    if aside is None:
        raise Damaged(f"{log.folder}/{name}/{MANIFEST} was written, and is not there. Try again")
    return aside


def cut(log: FileSinkLog, aside: Aside, kept: Sequence[SinkFile]) -> None:
    """Copy the entries of the log, then let it name only the files that stay. May be repeated."""
    for entry in aside.manifest.entries:
        log.files_of.copy(f"{LOG}/{entry}", aside.key(f"{ENTRIES}/{entry}"))
    log.keep(kept, aside.manifest.number)


def move_aside(log: FileSinkLog, aside: Aside) -> None:
    """Move the files. May be repeated. Raises ``Damaged`` for a file of another size, and for a path that leads out of the sink: no file
    was moved then.
    """
    named = {log.below(file) for file in log.files()}  # named again if a person has put them back meanwhile
    files = {log.key(file.name): file.bytes for file in aside.manifest.files if file.name not in named}
    for key in files:
        log.files_of.refuse_link(aside.key(key))
    there, names = log.files_of.sizes(aside.name), functools.cache(log.files_of.names)
    spare = aside.key(f"{TWICE}/{secrets.token_hex(8)}")
    for key, size in files.items():
        folder, _, name = key.rpartition("/")
        if there.get(aside.key(key)) != size:
            _move(log, key, aside.key(key), size)
        elif name in names(folder) and not _is_named(log, key):
            # Where a move is a copy, a driver may have been killed before it deleted. Nor is the file deleted now: this process may have
            # slept since it listed the folder, while a person has put the copy back
            _move(log, key, f"{spare}/{key}", size)


def _is_named(log: FileSinkLog, key: str) -> bool:
    """Return whether the log names a file now."""
    return any(log.key(log.below(file)) == key for file in log.files())


def _move(log: FileSinkLog, key: str, new: str, size: int) -> None:
    """Move a file that another process may be moving, too. Raises ``Damaged`` if it stays where it is."""
    folder, _, name = key.rpartition("/")
    if not log.files_of.move(key, new, size) and name in log.files_of.names(folder):
        raise Damaged(
            f"{log.folder}/{key} cannot be moved to {new}. Look at the rights of the user that runs Spark there"
        )


def listed(log: FileSinkLog, files: Iterable[SinkFile]) -> tuple[RewoundFile, ...]:
    """Return files of the log as a manifest names them. Raises ``Damaged`` for a path that leads out of the sink."""
    return tuple(RewoundFile(name=log.below(file), bytes=file.bytes) for file in files)


# -- putting back --------------------------------------------------------------------------------------------------------


def to_put_back(asides: Sequence[Aside]) -> Aside:
    """Return the newest of some folders, which are sorted by that; if a put-back was killed that filled it, the folder of the put-back."""
    newest = asides[0]
    return next((aside for aside in asides if newest.name == f"{aside.name}{SINCE}"), newest)


def held_before(log: FileSinkLog, aside: Aside) -> list[SinkFile]:
    """Return the files that a reader of the sink saw before, and sees again after they were put back. Raises ``Damaged``."""
    keys = [aside.key(f"{ENTRIES}/{entry}") for entry in aside.manifest.entries]
    return [file for key in keys for file in files_in(log.files_of.read(key)[0], f"{log.folder}/{key}")]


def put_back(
    log: FileSinkLog, aside: Aside, by: str, at: str, check: Callable[[], object] = lambda: None
) -> Aside | None:
    """Let the sink hold what it held before. Move the files that were written since aside, and return their folder. ``by`` and ``at``: who
    puts the rows back, and when. May be repeated until it returns.

    ``check`` raises an error if a query runs by now; it is called before readers see a difference. Raises ``Refused`` if nothing was taken
    out yet, and ``Damaged`` if a file is not there. In both cases nothing was changed. Raises ``Refused``, too, if its own manifest
    would replace the only one that names the files of another command.
    """
    before = check_put_back(log, aside)
    _bring(log, aside)
    check()
    entries, number = tuple(log.visible()), log.next_number()
    now = log.files()  # read last: what another process cuts meanwhile is not taken for files that were written since
    newer = listed(log, _without(now, before))
    wanted = replace(aside.manifest, by=by, at=at, entries=entries, number=number, files=newer, extra={})
    taken = _decided_again(log, aside, wanted, now)
    if taken:
        cut(log, taken, before)
        move_aside(log, taken)
    elif len(now) < len(before):
        log.keep(before, number)
    return taken


def check_put_back(log: FileSinkLog, aside: Aside) -> list[SinkFile]:
    """Raise what ``put_back`` raises before it changes anything. Return the files that the sink held before."""
    refuse_unfinished(log, aside)
    before = held_before(log, aside)
    _refuse_missing(log, aside, before)
    return before


def remove(log: FileSinkLog, aside: Aside) -> None:
    """Delete the files that were taken out, the manifest last. Raises what ``check_remove`` raises."""
    check_remove(log, aside)
    move_aside(log, aside)
    manifest = aside.key(MANIFEST)
    log.files_of.delete([*(key for key in log.files_of.sizes(aside.name) if key != manifest), manifest])


def check_remove(log: FileSinkLog, aside: Aside, before: Collection[str] = ()) -> None:
    """Raise ``Refused`` if another folder needs the files, or if nothing was taken out yet. ``before``: folders that are deleted before."""
    refuse_unfinished(log, aside)
    own = {file.name for file in aside.manifest.files}
    for other in all_aside(log.files_of):
        if other.name in (aside.name, *before):
            continue
        if own & {log.below(file) for file in held_before(log, other)}:
            raise Refused(
                f"{other.name} was taken out before, and is put back together with files of {aside.name}. Put {aside.name} back, or delete"
                f" {other.name} first. Nothing was deleted"
            )


def forget(log: FileSinkLog, aside: Aside) -> list[str]:
    """Delete the manifest and the log of a folder whose files were put back. Return the keys of other files in it: then it stays."""
    own = (aside.key(MANIFEST), aside.key(f"{ENTRIES}/"))
    there = log.files_of.sizes(aside.name)
    others = [key for key in there if not key.startswith(own)]
    if not others:
        log.files_of.delete([*there])
    return others


def refuse_unfinished(log: FileSinkLog, aside: Aside) -> None:
    """Raise ``Refused`` if the log still names the files that are to be taken out."""
    if log.newest_batch() < aside.manifest.number:
        raise Refused(
            f"the query '{aside.manifest.uid}' has begun to go back, and its sink {log.folder} still holds all rows. Nothing was changed"
        )


def _refuse_missing(log: FileSinkLog, aside: Aside, before: Iterable[SinkFile]) -> None:
    """Raise ``Damaged`` if a file that the sink held before is neither in its place nor in the folder."""
    there = log.files_of.sizes("")
    twice = _twice(aside, there)
    for key in (log.key(log.below(file)) for file in before):
        if key in there or aside.key(key) in there or key in twice:
            continue
        elsewhere = next((found for found in there if found.startswith(REWOUND) and found.endswith(f"/{key}")), "")
        advice = f"{elsewhere.partition('/')[0]} holds it: put that back first" if elsewhere else "somebody deleted it"
        raise Damaged(f"{log.folder}/{key} lies neither there nor in {aside.name}; {advice}. Nothing was changed")


def _bring(log: FileSinkLog, aside: Aside) -> None:
    """Move the files back to their places, where the log does not name them yet."""
    there = log.files_of.sizes(aside.name)
    twice = _twice(aside, there)
    for file in aside.manifest.files:
        key = log.key(file.name)
        if (copy := aside.key(key) if aside.key(key) in there else twice.get(key)) is not None:
            _move(log, copy, key, file.bytes)


def _twice(aside: Aside, there: Iterable[str]) -> dict[str, str]:
    """Return the files in ``_twice`` of the folder: their keys in the sink, and where they lie."""
    below = aside.key(f"{TWICE}/")
    return {key.removeprefix(below).partition("/")[2]: key for key in there if key.startswith(below)}


def _decided_again(log: FileSinkLog, aside: Aside, wanted: Manifest, now: Sequence[SinkFile]) -> Aside | None:
    """Put the manifest of the files that were written since. If there are none, return an earlier manifest: the log was already cut.

    ``now`` is what the log names.
    """
    name = f"{aside.name}{SINCE}"
    earlier = found_aside(log.files_of, name)
    if not wanted.files:
        return earlier
    if found_aside(log.files_of, aside.name) is None or (earlier and _holds_others(log, earlier, now)):
        raise Refused(
            f"{log.folder}: somebody else has put files back meanwhile, or a query has written since a command that was killed. Look at what"
            f" is there before you type a command again. If {aside.name} is still there, first put {name} back, or delete it"
        )
    if earlier:
        log.files_of.delete([f"{name}/{MANIFEST}"])
    return decide(log, name, wanted)


def _holds_others(log: FileSinkLog, earlier: Aside, now: Iterable[SinkFile]) -> bool:
    """Return whether a folder holds files that only its manifest names: the log was cut after it was put."""
    named = {log.below(file) for file in now}
    files = earlier.manifest.files
    return log.newest_batch() >= earlier.manifest.number and any(file.name not in named for file in files)


def _without(files: Iterable[SinkFile], others: Iterable[SinkFile]) -> list[SinkFile]:
    known = {file.path for file in others}
    return [file for file in files if file.path not in known]
