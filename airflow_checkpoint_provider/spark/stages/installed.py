"""Modules that Python finds elsewhere than in the script's folder and ``--py-files``. Runs in the Spark driver.

``PYTHONPATH`` and editable installations lead to modules that their author changes as the script; they count like those beside it.
Installed modules do not count: Python's own, and those in folders that an installer fills.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

OURS = {"airflow_checkpoint_provider", "pyspark", "py4j"}  # their versions are compared, or do not change rows
INSTALLERS = {"site-packages", "dist-packages"}
PYTHON = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def read_elsewhere(name: str, folders: Sequence[str]) -> bytes | None:
    """Return the content of a module's file by its relative path; None if Python finds none, or an installed one.

    ``folders`` are the folders in which executors look, too.
    """
    top, _, rest = name.partition("/")
    module = top.removesuffix(".py")
    if module in OURS:
        return None
    for spec in _specs(module, folders):
        for root, path in _paths(spec, rest):
            if not _installed(root) and (content := _content(spec, path)) is not None:
                return content
    return None


def folders_elsewhere(script_folder: Path, folders: Sequence[str]) -> list[str]:
    """Return the folders of Python's path whose modules count: not the script's own, and nothing installed."""
    found = {path for path in _path(folders) if path.is_dir()} - {script_folder}
    return sorted(
        str(path) for path in found if not _installed(path) and not any((path / name).exists() for name in OURS)
    )


def archives_elsewhere(folders: Sequence[str]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield name and modules of each archive of Python's path whose modules count. An entry may be a folder inside of an archive."""
    entries = ((path, *path.parents) for path in _path(folders))
    found = (next(filter(zipfile.is_zipfile, paths), None) for paths in entries)
    for archive in dict.fromkeys(found):
        if archive and not _installed(archive.parent):
            members = modules_in(archive)
            if not OURS & {name.partition("/")[0] for name in members}:
                yield archive.name, members


def is_installed(module: str) -> bool:
    """Tell whether an imported module is an installed one. Python's own are none: they hold what the script gives to them."""
    if module in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and _installed(Path(str(file)).parent)


def modules_in(archive: Path) -> dict[str, bytes]:
    """Return the modules of an archive by their names in it; if it is damaged or encrypted, its content without a name.

    Python passes over such an archive, but another one in its place is another program.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist() if name.endswith(".py")}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        return {"": archive.read_bytes()}


def _path(folders: Sequence[str]) -> list[Path]:
    """Return the entries of Python's path here, and those at which executors look, too."""
    return [Path(entry).resolve() for entry in (*sys.path, *folders) if entry]


def _specs(module: str, folders: Sequence[str]) -> Iterator[ModuleSpec]:
    for find in (find_spec, lambda name: PathFinder.find_spec(name, list(folders))):
        try:
            spec = find(module)
        except (ImportError, ValueError, AttributeError):  # a finder raises it for a module that is half imported
            continue
        if spec is not None:
            yield spec


def _paths(spec: ModuleSpec, rest: str) -> Iterator[tuple[Path, Path]]:
    """Yield the folder in which a module lies, and its file: in a package's folders, of which a namespace may have many."""
    if spec.submodule_search_locations is not None:
        yield from ((Path(folder).parent, Path(folder, rest)) for folder in spec.submodule_search_locations if rest)
    elif spec.origin and not rest:
        yield Path(spec.origin).parent, Path(spec.origin)


def _content(spec: ModuleSpec, path: Path) -> bytes | None:
    if path.is_file():
        return path.read_bytes()
    read = getattr(spec.loader, "get_data", None)  # in an archive
    try:
        return read(str(path)) if read else None
    except OSError:
        return None


@functools.cache
def _installed(folder: Path) -> bool:
    """Tell whether an installer fills the folder. ``pip install --target`` leaves records beside the packages."""
    path = folder.resolve()
    if INSTALLERS & set(path.parts) or any(path.is_relative_to(python) for python in PYTHON):
        return True
    return any(path.glob("*.dist-info"))
