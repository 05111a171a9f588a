"""The packaged studies: each is a folder here with a matrix.yaml."""

from pathlib import Path

from grading.yaml_file import FileError, nearest

MATRIX_NAMES = ("matrix.yaml", "matrix.yml", "matrix.json")


def list_studies() -> list[str]:
    """The names of the packaged studies."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/matrix.yaml"))


def find_study(name_or_path: str) -> Path:
    """The matrix file of a packaged study's name, of a file's path, or of a folder that holds one.

    Raises:
        FileError: where there is none.
    """
    if not name_or_path:
        raise FileError("STUDY", None, None, "is empty: name a packaged study, a matrix file, or its folder")
    try:
        return _found(Path(name_or_path), name_or_path)
    except OSError as error:
        shown = name_or_path if len(name_or_path) <= 200 else name_or_path[:197] + "..."
        raise FileError(shown, None, None, f"cannot be read: {error.strerror or error}") from error


def _found(path: Path, name_or_path: str) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        for name in MATRIX_NAMES:
            if (path / name).is_file():
                return path / name
        # A folder that happens to be called like a packaged study does not hide it.
        if name_or_path not in list_studies():
            raise FileError(path, None, None, "the folder holds no matrix.yaml")
    if name_or_path in list_studies():
        return Path(__file__).parent / name_or_path / "matrix.yaml"
    message = f"there is no such file and no packaged study of that name:{nearest(name_or_path, list_studies())}"
    raise FileError(name_or_path, None, None, message)
