"""Which source files an agent, a grader or the simulator is made of, and one hash over them."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from simulator.canonical import canonical_hash, sha256
from simulator.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def files_below(folder: "Path", pattern: str = "*") -> "list[Path]":
    """Every file below a folder but hidden ones, compiled ones and what lies in virtual environments."""
    from fnmatch import fnmatchcase
    from pathlib import Path

    return sorted(Path(file) for file in _below(str(folder)) if fnmatchcase(os.path.basename(file), pattern))


def _below(folder: str) -> Iterator[str]:
    for inside, folders, names in os.walk(folder):
        folders[:] = [
            one
            for one in folders
            if not one.startswith(".")
            and one not in _SKIPPED_FOLDERS
            and not os.path.exists(os.path.join(inside, one, "pyvenv.cfg"))
        ]
        for name in names:
            file = os.path.join(inside, name)
            if not name.startswith(".") and not name.endswith(".pyc") and os.path.isfile(file):
                yield file


def files_hash(root: "str | Path", files: "Iterable[str | Path]") -> str:
    """One hash over the names below ``root`` and the contents of some files."""
    return canonical_hash({os.path.relpath(file, root): sha256(_content(file)) for file in files})


def _content(file: "str | Path") -> bytes:
    with open(file, "rb") as opened:
        return opened.read()


@cache
def source_hash(module: str) -> str:
    """The hash over a module of ours: its file, or for a package every file in its folder.

    Raises:
        ModuleNotFoundError: where there is no such module.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    folder = os.path.dirname(spec.origin)
    return files_hash(folder, _below(folder) if spec.submodule_search_locations else [spec.origin])


def simulator_identity() -> dict[str, Any]:
    """The software that runs a trial: the version, and a hash over the simulator's own source files."""
    return {"version": VERSION, "source": source_hash("simulator")}
