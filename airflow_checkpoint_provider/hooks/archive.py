"""The archive that brings the runtime to the driver (``--py-files``). Runs in Airflow (worker)."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
import zipfile
from pathlib import Path

from airflow.configuration import get_airflow_home

import airflow_checkpoint_provider
from airflow_checkpoint_provider.errors import CommitStateUnknown, StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, S3Settings, open_store
from airflow_checkpoint_provider.storage.base import Put, put
from airflow_checkpoint_provider.storage.registry import lies_within

FOLDERS = (
    "protocol",
    "policies",
    "storage",
    "location",
    "file_sink",
    "sinks",
    "coordinator",
    "text",
    "checkpoint",
    "spark",
)
STAMP = (1980, 1, 1, 0, 0, 0)  # the same content is the same archive


def driver_archive() -> Path:
    """Return the zip with the driver's modules under ``$AIRFLOW_HOME``. Its name has version and hash. It is written once per
    content, and again if the file of that name holds another content."""
    return _in_folder(Path(get_airflow_home(), "checkpoint_archives"), _body())


def publish(place: str, s3: S3Settings | None, root: str) -> str:
    """Write the zip below ``place``, a URI or an absolute path that the cluster reads, if it is not there. Return its URI.

    It is code. So nobody may write there who may only write checkpoints: raise ``StoreMisconfigured`` for a place at or below ``root``,
    for a directory that other users may write, and for another content under the name of the zip.
    """
    store = open_store(place, s3=s3, create_root=False)
    if lies_within([root], store.uri):
        raise StoreMisconfigured(
            f"code={place!r} lies below the root of the checkpoints, {root}. Whoever may write checkpoints there could run code in your"
            " drivers. Name a place that only Airflow and administrators may write"
        )
    body = _body()
    if isinstance(store, LocalStore):
        folder = Path(store.uri.removeprefix("file://"))
        _check_owner(folder)
        return _in_folder(folder, body).as_uri()
    name = _name(body)
    outcome, _ = put(store, name, body)
    if outcome is Put.UNKNOWN:
        raise CommitStateUnknown.of(f"{store.uri}/{name} was written")
    if outcome is Put.EXISTS:
        raise StoreMisconfigured(
            f"{store.uri}/{name} does not hold what this package would write there, so it was not used. Find out who wrote it, and"
            " delete it"
        )
    return f"{place.strip().rstrip('/')}/{name}"


def _check_owner(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as error:
        raise StoreMisconfigured(
            f"code={str(folder)!r} cannot be used: {error.strerror}. Make the folder, where Airflow and the cluster see it under one path"
        ) from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreMisconfigured(
            f"code={str(folder)!r} may be written by other users (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}), who could"
            f" run code in your drivers. Make it yours alone: chmod go-w {folder}"
        )


def _in_folder(folder: Path, body: bytes) -> Path:
    target = folder / _name(body)
    try:
        if not target.is_file() or target.read_bytes() != body:
            _write(target, body)
    except OSError as error:
        raise StoreMisconfigured(
            f"{target} cannot be written: {error.strerror}. The driver needs this package there. Let the user of the workers write the folder"
        ) from error
    return target


def _name(body: bytes) -> str:
    content = hashlib.sha256(body).hexdigest()[:12]
    return f"airflow_checkpoint_provider-{airflow_checkpoint_provider.__version__}-{content}.zip"


def _body() -> bytes:
    package = Path(airflow_checkpoint_provider.__file__).parent
    sources = [
        package / "__init__.py",
        package / "errors.py",
        *(path for folder in FOLDERS for path in sorted((package / folder).rglob("*.py"))),
    ]
    return _zipped({str(path.relative_to(package.parent)): path.read_bytes() for path in sources})


def _zipped(members: dict[str, bytes]) -> bytes:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, STAMP), body)
    return zipped.getvalue()


def _write(target: Path, body: bytes) -> None:
    """Write the archive atomically: another task may write the same one, perhaps as another user, who must be able to read it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        try:
            file.write(body)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
