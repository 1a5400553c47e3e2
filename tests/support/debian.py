"""Programs from Debian's packages, unpacked below the checkout: nothing is installed, no root rights are needed. Runs on Debian 12."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.downloads import put

DOWNLOAD = 200.0  # seconds, for one call of apt-get
TAIL = 2_000  # bytes of what it says


class NoPackages(Exception):
    """This machine cannot have the packages that the tests know; says why."""


def unpacked(target: Path, packages: tuple[str, ...], wanted: str) -> Path:
    """Return ``target``, a folder laid out like ``/``; filled on first use, which takes half a minute.

    Of ``packages`` and what they ask for, those come whose names begin with the pattern ``wanted``: the programs, and libraries that this
    machine may lack. What else the packages ask for tends disks and users. Raises ``NoPackages``.
    """
    if not target.exists():
        system = _system()
        if (system.get("ID"), system.get("VERSION_ID")) != ("debian", "12"):
            name = system.get("PRETTY_NAME", "not Linux")
            raise NoPackages(f"{packages[0]} comes from Debian 12's packages, and this is {name}")
        with TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as folder:
            put(_unpack(Path(folder), packages, wanted), target)
    return target


def _system() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _unpack(folder: Path, packages: tuple[str, ...], wanted: str) -> Path:
    """A plain user cannot renew the system's lists of packages, so there are own ones."""
    for name in ("lists/partial", "archives/partial", "packages", "root"):
        (folder / name).mkdir(parents=True)
    _apt_get(folder, "update")
    plan = _apt_get(folder, "install", "--simulate", "--reinstall", "--no-install-recommends", *packages)
    _apt_get(folder, "download", *re.findall(rf"^Inst ((?:{wanted})\S*)", plan, re.MULTILINE))
    for package in (folder / "packages").iterdir():
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], timeout=60, check=True)
    return folder / "root"


def _apt_get(folder: Path, *arguments: str) -> str:
    settings = {
        "Dir::State::Lists": folder / "lists", "Dir::Cache": folder, "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
    }  # fmt: skip
    done = subprocess.run(
        ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items()), *arguments],
        cwd=folder / "packages", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=DOWNLOAD, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"apt-get {arguments[0]} ended with {done.returncode}:\n{done.stdout[-TAIL:]}")
    return done.stdout
