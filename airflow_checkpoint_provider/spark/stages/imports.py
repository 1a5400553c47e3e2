"""The modules that a script imports, by its syntax tree, also those of its modules. Runs in the Spark driver.

A module is looked up in the given sources only: the script's folder, ``--py-files``, and other folders where nothing is installed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Read = Callable[[str], bytes | None]
"""Return the content of a relative path; None if there is no such file."""

COMPUTED_MODULES = {"imp", "importlib", "pkgutil", "runpy", "site", "zipimport"}
HARMLESS = {"importlib.metadata", "importlib.resources"}  # they read installed packages, and data
COMPUTED_CALLS = {"__import__", "exec", "addPyFile", "addArtifact", "addArtifacts"}


@dataclass(frozen=True)
class ModuleSource:
    """A folder, an archive or a file that modules are imported from. ``prefix`` comes before its names in logs."""

    prefix: str
    read: Read


@dataclass(frozen=True)
class Closure:
    """The imported ``modules``, name to content. ``computed`` says where an import is computed, so that modules may be missing."""

    modules: dict[str, bytes]
    computed: str | None


def closure(script: bytes, package: str, sources: Sequence[ModuleSource]) -> Closure:
    """Return the modules that ``script`` imports. ``package`` is its package if Python was started with ``-m``, else empty."""
    modules: dict[str, bytes] = {}
    computed: str | None = None
    seen: set[str] = set()
    waiting = [("the script", package, script)]
    while waiting:
        place, package, body = waiting.pop()
        found = _imports(body, package, place.endswith("__init__.py"))
        computed = computed or (found.computed and f"{found.computed} in {place}")
        for module in found.names - seen:
            seen.add(module)
            for name, content, inside in _sources_of(module, sources):
                modules[name] = content
                waiting.append((name, inside, content))
    return Closure(modules, computed)


def _sources_of(module: str, sources: Sequence[ModuleSource]) -> Iterator[tuple[str, bytes, str]]:
    """Yield name, content and package of the file of a module; nothing if it is in none of the sources."""
    path = module.replace(".", "/")
    for source in sources:
        for file, package in ((f"{path}/__init__.py", module), (f"{path}.py", module.rpartition(".")[0])):
            if (content := source.read(file)) is not None:
                yield f"{source.prefix}{file}", content, package
                return


@dataclass(frozen=True)
class _Imports:
    names: set[str]  # each dotted name that may be a module
    computed: str | None


def _imports(body: bytes, package: str, is_package: bool) -> _Imports:
    try:
        nodes = list(ast.walk(ast.parse(body)))
    except (SyntaxError, ValueError, RecursionError):  # Python cannot import it either
        return _Imports(set(), None)
    names = {name for node in nodes for name in _names(node, package, is_package)}
    computed = (what for node in nodes if (what := _computed(node)))
    return _Imports({part for name in names for part in _with_parents(name)}, next(computed, None))


def _names(node: ast.AST, package: str, is_package: bool) -> Iterator[str]:
    """Yield the modules that a node may import. ``from a import b`` may import ``a.b``; ``*`` imports what ``__all__`` lists."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif is_package and isinstance(node, ast.Assign | ast.AugAssign) and node.value:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            texts = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            yield from (f"{package}.{text}" for text in texts if isinstance(text, str))


def _with_parents(name: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``: Python imports the packages, too."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _computed(node: ast.AST) -> str | None:
    """Return the name in the code that computes an import, or changes where modules are found; None if the node has none."""
    if isinstance(node, ast.Import):
        return next((alias.name for alias in node.names if _computes(alias.name)), None)
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        if node.module == "sys" and any(alias.name == "path" for alias in node.names):
            return "sys.path"
        return next((name for alias in node.names if _computes(name := f"{node.module}.{alias.name}")), None)
    if isinstance(node, ast.Attribute):
        if node.attr == "path" and isinstance(node.value, ast.Name) and node.value.id == "sys":
            return "sys.path"
        return node.attr if node.attr in COMPUTED_CALLS - {"exec"} else None
    return node.id if isinstance(node, ast.Name) and node.id in COMPUTED_CALLS else None


def _computes(name: str) -> bool:
    if any(name == harmless or name.startswith(f"{harmless}.") for harmless in HARMLESS):
        return False
    return name.split(".", maxsplit=1)[0] in COMPUTED_MODULES
