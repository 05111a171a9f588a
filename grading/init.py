"""A small study of one's own to start from, written all at once or not at all."""

import json
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from grading.file_error import FileError

_TEMPLATES = Path(__file__).parent / "new_study"
_WORLD = "orders"


def create_study(folder: Path) -> list[Path]:
    """Write a study into a folder, which is made where it is missing. Returns the files, the matrix file first.

    Raises:
        FileError: where a file is there already or cannot be written; then nothing was.
    """
    contents = _contents(folder)
    targets = {folder / name: content for name, content in contents.items()}
    try:
        there = [path for path in targets if path.exists() or path.is_symlink()]
        if folder.is_symlink() and not folder.exists():
            raise FileError(folder, None, None, "is a link that leads nowhere: name another folder")
        if folder.exists() and not folder.is_dir():
            raise FileError(folder, None, None, "is no folder: name another one")
    except OSError as error:
        raise FileError(error.filename or folder, None, None, f"cannot be made: {error.strerror}") from error
    if there:
        message = "is there already, nothing was written: name another folder"
        raise FileError.together(FileError(path, None, None, message) for path in there)
    try:
        if folder.exists():
            _add(targets)
        else:
            _create(folder, contents)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise FileError(where, None, None, f"cannot be written: {error.strerror}; nothing was") from error
    return list(targets)


def _contents(folder: Path) -> dict[str, str]:
    from grading.schemas import cases_schema, matrix_schema

    contents = {name: (_TEMPLATES / name).read_text("utf-8") for name in ("matrix.yaml", "cases.yaml", "agent.py")}
    contents["matrix.yaml"] = contents["matrix.yaml"].replace("name: my-study\n", f"name: {_study_name(folder)}\n", 1)
    contents["schemas/matrix.schema.json"] = json.dumps(matrix_schema(), indent=2) + "\n"
    contents["schemas/cases.schema.json"] = json.dumps(cases_schema(_WORLD), indent=2) + "\n"
    return contents


def _study_name(folder: Path) -> str:
    """The folder's name as a study's: two new studies in one store shall not pass for one that was changed."""
    words = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower())
    return words.strip("-")[:63].strip("-") or "my-study"


def _create(folder: Path, contents: dict[str, str]) -> None:
    """A whole new folder appears by one rename, so that a crash leaves no half of it."""
    missing = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
    try:
        for name, content in contents.items():
            _write(staged / name, content)
        staged.chmod(0o777 & ~_umask())
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def _add(targets: dict[Path, str]) -> None:
    """Into a folder that is there: each file only if it still is not, and all taken back if one fails."""
    written: list[Path] = []
    made: list[Path] = []
    try:
        for path, content in targets.items():
            if not path.parent.exists():
                path.parent.mkdir()
                made.append(path.parent)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(content)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        raise


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, "utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
