"""Which source files an agent, a grader or the simulator is made of, and one hash over them."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simulator.canonical import canonical_hash, sha256
from simulator.version import VERSION

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """Every file below a folder but hidden ones, compiled ones and what lies in virtual environments."""
    found = []
    for inside, folders, names in os.walk(folder):
        folders[:] = [
            one
            for one in folders
            if not one.startswith(".") and one not in _SKIPPED_FOLDERS and not Path(inside, one, "pyvenv.cfg").exists()
        ]
        for name in names:
            if not name.startswith(".") and not name.endswith(".pyc") and fnmatchcase(name, pattern):
                path = Path(inside, name)
                if path.is_file():
                    found.append(path)
    return sorted(found)


def files_hash(root: Path, files: Iterable[Path]) -> str:
    """One hash over the names below ``root`` and the contents of some files."""
    return canonical_hash({path.relative_to(root).as_posix(): sha256(path.read_bytes()) for path in files})


@cache
def source_hash(module: str) -> str:
    """The hash over a module of ours: its file, or for a package every file in its folder.

    Raises:
        ModuleNotFoundError: where there is no such module.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    origin = Path(spec.origin)
    if spec.submodule_search_locations:
        return files_hash(origin.parent, files_below(origin.parent))
    return files_hash(origin.parent, [origin])


def simulator_identity() -> dict[str, Any]:
    """The software that runs a trial: the version, and a hash over the simulator's own source files."""
    return {"version": VERSION, "source": source_hash("simulator")}
