"""Names of jobs, runs and states, and the keys made of them. Runs anywhere.

A name becomes a *safe token* before it is part of a key, so no key leaves its root, and nothing in it means anything to
Hadoop (``:``, ``{``) or to partition discovery (``=``, a leading ``_`` or ``.``).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_checkpoint_provider.errors import InvalidName

JOBS = "jobs"  # the folder below the root in which the histories lie, in a folder for each job
HISTORY = rf"{JOBS}/[^/]+/(?:job|runs/[^/]+)(?:/items/[^/]+)?"  # a pattern of the prefix of a history
SAVEPOINTS = "savepoints"  # the folder below the root in which savepoints lie by default
LONGEST_NAME = 200  # characters
LONGEST_ITEM = 1000  # characters
ITEMS = "items"  # the folder below a history in which the histories of mapped items lie
INDEXES = "indexes"  # the folder beside it in which map indexes are registered with their items
KEPT_OF_LONG_NAME = 160  # characters; a digest of the whole name follows them
SEGMENT = 64  # entries of a journal between two boundaries
ALONE = "-"  # the file name of the application that has no name
STATE, QUERY = "state", "query"  # below a history, <kind>/<uid>/<epoch>-<nonce> is a folder that one attempt writes

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+)?")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def safe_token(name: str) -> str:
    """Return ``name`` as one path segment: ``[A-Za-z0-9._-]`` unchanged, other UTF-8 bytes as ``~hh``.

    Raises ``InvalidName`` if it is empty, or no text: Python makes surrogates of bytes that are not UTF-8.
    """
    if not name:
        raise InvalidName("an empty name cannot be part of a key; give it at least one character")
    try:
        encoded = "".join(chr(byte) if byte in _SAFE else f"~{byte:02x}" for byte in name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{name!r} is not text in UTF-8, so it cannot be part of a key; write it in UTF-8") from None
    if encoded[0] in "._-":
        encoded = f"~{ord(encoded[0]):02x}{encoded[1:]}"
    if len(encoded) <= LONGEST_NAME:
        return encoded
    return f"{encoded[:KEPT_OF_LONG_NAME]}~.{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def time_in(token: str) -> str | None:
    """Return the first time in a name that became part of a key, such as a run's; None if it has none. They compare as times."""
    match = _TIME.search(unquote(token.replace("~", "%")))
    return match[0] if match else None


def is_job_id(job: str) -> bool:
    """Return whether ``job`` can be a job id: letters, digits, ``.``, ``_``, ``-``."""
    return isinstance(job, str) and bool(_JOB_ID.fullmatch(job)) and len(job) <= LONGEST_NAME


def check_job_id(job: str) -> str:
    """Return ``job`` if it is a job id. Raises ``InvalidName``."""
    if not is_job_id(job):
        raise InvalidName(
            f"{job!r} is not a job id: write static text of ASCII letters, digits, '.', '_' and '-' that begins with a letter or digit, at"
            f" most {LONGEST_NAME} long. What changes from run to run belongs into scope="
        )
    return job


def job_id_of(dag_id: str, task_id: str) -> str:
    """Return the job id of a task that names none: ``dag_id.task_id``. If that is no job id, or the id of the DAG has a dot, the part of it
    that can be one, and a digest of the whole.

    A task in a group has a dot in its id: task ``daily.load`` of DAG ``etl`` and task ``load`` of DAG ``etl.daily`` are two jobs.
    """
    name, dotted = f"{dag_id}.{task_id}", "." in dag_id
    if is_job_id(name) and not dotted:
        return name
    kept = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-")[:KEPT_OF_LONG_NAME]
    whole = f"{dag_id}/{task_id}" if dotted else name  # no id has a slash
    return "-".join(filter(None, (kept, hashlib.sha256(whole.encode()).hexdigest()[:16])))


def check_uid(uid: str) -> str:
    """Return ``uid`` if it can name a state: printable text, not blank, at most 200 characters. Raises ``InvalidName``."""
    if not isinstance(uid, str) or not uid.strip() or len(uid) > LONGEST_NAME or not uid.isprintable():
        raise InvalidName(f"uid {uid!r}: a state's name is printable text of 1 to {LONGEST_NAME} characters, not blank")
    return uid


def check_item(item: object) -> str:
    """Return ``item`` if it can be the key of an instance's history: printable text, not blank, at most 1,000 characters. Raises
    ``InvalidName``.
    """
    if not isinstance(item, str):
        raise InvalidName(
            f"item={item!r} is not text. Write text that names what the instance works on, such as"
            ' .expand(item=["orders", "payments"]). Digits become a number with render_template_as_native_obj=True: put a letter before them'
        )
    if not item.strip() or len(item) > LONGEST_ITEM or not item.isprintable():
        shown = item if len(item) <= LONGEST_NAME else f"{item[:LONGEST_NAME]}…"
        raise InvalidName(
            f"item={shown!r}: an item is printable text of 1 to {LONGEST_ITEM} characters, not blank. Write what the instance works on,"
            ' such as .expand(item=["orders", "payments"])'
        )
    safe_token(item)  # raises if it is not UTF-8
    return item


@dataclass(frozen=True)
class History:
    """The identity of a history: a job in job scope (``run`` is None) or one run of it, perhaps for one mapped item."""

    job: str
    run: str | None = None
    item: str | None = None

    @property
    def prefix(self) -> str:
        scope = ("job",) if self.run is None else ("runs", safe_token(self.run))
        item = () if self.item is None else (ITEMS, safe_token(self.item))
        return "/".join((JOBS, safe_token(self.job), *scope, *item))


def items_folder(history: History) -> str:
    """Return the folder of the histories of the items of a job or a run."""
    return f"{History(history.job, history.run).prefix}/{ITEMS}"


def runs_folder(job: str) -> str:
    """Return the folder of the histories of a job's runs."""
    return f"{JOBS}/{safe_token(job)}/runs"


@dataclass(frozen=True)
class Keys:
    """The keys of one history, relative to the store's root."""

    prefix: str

    def pointer(self, root: str, number: int) -> Pointer:
        """Return the pointer of a checkpoint of this history below the store's root, a URI."""
        return Pointer(root, self.prefix, number)

    def savepoint(self, number: int, nonce: str) -> str:
        """Return the name of a savepoint's directory. The folder of the history names the job, because a journal may be forged."""
        return _savepoint(self.job, number, nonce)

    @property
    def job(self) -> str:
        """Return the job, which the folder of the history names. A job id is its own safe token."""
        return self.prefix.split("/")[1]

    def folder(self, root: str) -> str:
        """Return the URI of the history's folder below the store's root. It is the owner of the savepoints that the history claims: no
        journal can forge it.
        """
        return f"{root}/{self.prefix}"

    @property
    def journal(self) -> str:
        return f"{self.prefix}/journal"

    def entry(self, number: int) -> str:
        return f"{self.journal}/{number:016d}"

    def is_entry(self, key: str) -> bool:
        """Return whether a key below ``journal`` is that of an entry. A file system puts files of its own beside them."""
        return re.fullmatch(r"\d{16}", key.rpartition("/")[2], re.ASCII) is not None

    @property
    def heartbeats(self) -> str:
        return f"{self.prefix}/heartbeat"

    def attempt_beat(self, epoch: int) -> str:
        return f"{self.heartbeats}/{epoch}"

    def launch_beat(self, launch: int) -> str:
        return f"{self.heartbeats}/launch-{launch}"

    def driver_beat(self, launch: int) -> str:
        return f"{self.heartbeats}/driver-{launch}"

    def checkpoint(self, number: int) -> str:
        return f"{self.prefix}/chk-{number}"

    def acknowledgement(self, number: int, application: str) -> str:
        return f"{self.checkpoint(number)}/acks/{safe_token(application) if application else ALONE}"

    def seal(self, number: int) -> str:
        return f"{self.checkpoint(number)}/_metadata"

    def file_set(self, path: str) -> str:
        """Return the key of a file set, whose ``path`` is relative to the history."""
        return f"{self.prefix}/{path}"


def beat_number(key: str) -> int | None:
    """Return the epoch or the launch whose heartbeat is at ``key``; None if the key has no number."""
    number = key.rsplit("/", 1)[1].rpartition("-")[2]
    return int(number) if _COUNT.fullmatch(number) else None


def is_attempt_beat(key: str) -> bool:
    """Return whether the heartbeat at ``key`` is that of an attempt, not of a launch."""
    return key.rsplit("/", 1)[1].isdecimal()


def file_set_path(uid: str, epoch: int, nonce: str) -> str:
    """Return the path of one snapshot of one state, relative to its history."""
    return f"{STATE}/{safe_token(uid)}/{epoch}-{nonce}"


def location_path(uid: str, epoch: int, nonce: str) -> str:
    """Return the path of a query's checkpoint location, relative to its history."""
    return f"{QUERY}/{safe_token(uid)}/{epoch}-{nonce}"


def file_set_epoch(path: str) -> int:
    """Return the epoch of the attempt that wrote the file set, or the checkpoint location, at ``path``."""
    return int(path.rsplit("/", 1)[1].split("-", 1)[0])


def savepoint_name(job: str, number: int, nonce: str) -> str:
    """Return the name of a savepoint's folder at its target. ``nonce`` distinguishes two histories of one job id."""
    return _savepoint(safe_token(job), number, nonce)


def _savepoint(job_token: str, number: int, nonce: str) -> str:
    return f"savepoint-{job_token}-{number}-{nonce}"


def check_savepoint_target(target: str | None, number: int, nonce: str) -> None:
    """Raise ``ValueError`` unless ``target`` ends with the directory name of savepoint ``number`` and ``nonce``.

    Job and place are not checked. Files below a target are read and deleted, so a forged one is dangerous. None passes: only
    savepoints have a target.
    """
    if target is None:
        return
    name = SavepointPointer.parse(target).name
    if not (name.startswith("savepoint-") and name.endswith(f"-{number}-{nonce}")):
        raise ValueError(f"{target!r} is not a directory of savepoint {number}")


_COUNT = re.compile(r"[0-9]{1,18}")
_NUMBER = r"(?P<id>[1-9][0-9]{0,17})"
_ID = re.compile(f"(?:chk-)?{_NUMBER}")
_POINTER = re.compile(rf"(?P<root>.+?)/(?P<prefix>{HISTORY})/chk-{_NUMBER}")
_DIRECTORY = re.compile(r"(?P<root>.*[^/:])/(?P<name>[^/]+)")
_BELOW = re.compile(r"/+(?:_metadata/*)?\Z")  # a directory, with a slash, and its `_metadata` are one pointer


@dataclass(frozen=True)
class Pointer:
    """A checkpoint of any history: the URI of the root, the key of its history below it, and its id."""

    root: str
    prefix: str
    id: int

    def __str__(self) -> str:
        return f"{self.root}/{self.prefix}/chk-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Pointer:
        match = _POINTER.fullmatch(_directory(text))
        if not match:
            raise InvalidName(
                f"{text!r} is not a pointer to a checkpoint; it looks like <root>/jobs/<job>/job/chk-7 or"
                " <root>/jobs/<job>/runs/<run>/chk-7, as `checkpoints show` prints it"
            )
        return cls(match["root"], match["prefix"], int(match["id"]))


@dataclass(frozen=True)
class SavepointPointer:
    """A savepoint in any place: the URI above its directory, and the name of the directory, which is free.

    Wildcard characters in it have no special meaning.
    """

    root: str
    name: str

    def __str__(self) -> str:
        return f"{self.root}/{self.name}"

    @property
    def keys(self) -> Keys:
        """Return the keys of its file sets, which lie below its directory as a history's lie below the history."""
        return Keys(self.name)

    @property
    def metadata(self) -> str:
        return f"{self.name}/_metadata"

    @property
    def claim(self) -> str:
        return f"{self.name}/_claimed"

    @classmethod
    def parse(cls, text: str) -> SavepointPointer:
        match = _DIRECTORY.fullmatch(_directory(text))
        if not match or match["name"] == ".":
            raise InvalidName(
                f"{text!r} is not a pointer: write <root>/jobs/<job>/job/chk-7 or <root>/jobs/<job>/runs/<run>/chk-7, as `checkpoints show`"
                " prints it, or the directory of a savepoint, <target>/savepoint-<job>-7-<nonce>"
            )
        return cls(match["root"], match["name"])


def check_prefix(text: str) -> str:
    """Return ``text`` if it can be the prefix of a history. Raises ``InvalidName``."""
    prefix = _directory(text)
    if not re.fullmatch(HISTORY, prefix):
        raise InvalidName(f"{text!r} is not a history; it looks like jobs/<job>/job or jobs/<job>/runs/<run>")
    return prefix


def checkpoint_id(text: str) -> int | None:
    """Return the id in ``7`` or ``chk-7``; None if the text holds no id."""
    match = _ID.fullmatch(text)
    return int(match["id"]) if match else None


def pointer_of(text: str) -> Pointer | SavepointPointer:
    """Return the pointer that ``text`` names.

    A checkpoint of a history is found through its journal. Any other directory is a savepoint if it holds
    ``_metadata``, wherever it was moved and whatever its name is.
    """
    try:
        return Pointer.parse(text)
    except InvalidName:
        return SavepointPointer.parse(text)


def _directory(text: str) -> str:
    """Return the directory that ``text`` names; an empty text if it could lead out of its root, or is not printable."""
    return _BELOW.sub("", text) if ".." not in text.split("/") and text.isprintable() else ""
