"""The archive that brings the runtime to the driver (``--py-files``). Runs in Airflow (worker)."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

from airflow.configuration import get_airflow_home

import airflow_checkpoint_provider

FOLDERS = ("protocol", "policies", "storage", "location", "file_sink", "coordinator", "text", "checkpoint", "spark")
STAMP = (1980, 1, 1, 0, 0, 0)  # the same content is the same archive


def driver_archive() -> Path:
    """Return the zip with the driver's modules under ``$AIRFLOW_HOME``. Its name has version and hash. It is written once per
    content, and again if the file of that name holds another content."""
    package = Path(airflow_checkpoint_provider.__file__).parent
    sources = [
        package / "__init__.py",
        package / "errors.py",
        *(path for folder in FOLDERS for path in sorted((package / folder).rglob("*.py"))),
    ]
    body = _zipped({str(path.relative_to(package.parent)): path.read_bytes() for path in sources})
    content = hashlib.sha256(body).hexdigest()[:12]
    name = f"airflow_checkpoint_provider-{airflow_checkpoint_provider.__version__}-{content}.zip"
    target = Path(get_airflow_home(), "checkpoint_archives", name)
    if not target.is_file() or target.read_bytes() != body:
        _write(target, body)
    return target


def _zipped(members: dict[str, bytes]) -> bytes:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, STAMP), body)
    return zipped.getvalue()


def _write(target: Path, body: bytes) -> None:
    """Write the archive atomically: another task may write the same one, perhaps as another user, who must be able to read it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".")
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        os.fchmod(handle, 0o644)
    os.replace(temporary, target)
