"""The archive with which the runtime travels to the driver (``--py-files``). Runs in Airflow (worker)."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

from airflow.configuration import get_airflow_home

import airflow_checkpoint_provider

FOLDERS = ("protocol", "policies", "storage", "coordinator", "text", "checkpoint", "spark")
STAMP = (1980, 1, 1, 0, 0, 0)  # the same content is the same archive


def driver_archive() -> Path:
    """Return the zip with the driver's modules under ``$AIRFLOW_HOME``. It is written once per content; its name has version and
    hash."""
    package = Path(airflow_checkpoint_provider.__file__).parent
    sources = [
        package / "__init__.py",
        package / "errors.py",
        *(path for folder in FOLDERS for path in sorted((package / folder).rglob("*.py"))),
    ]
    members = {str(path.relative_to(package.parent)): path.read_bytes() for path in sources}
    content = hashlib.sha256(repr(sorted(members.items())).encode()).hexdigest()[:12]
    name = f"airflow_checkpoint_provider-{airflow_checkpoint_provider.__version__}-{content}.zip"
    target = Path(get_airflow_home(), "checkpoint_archives", name)
    if not target.exists():
        _write(target, members)
    return target


def _write(target: Path, members: dict[str, bytes]) -> None:
    """Write the archive atomically: another task may write the same one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, STAMP), body)
    temporary.replace(target)
