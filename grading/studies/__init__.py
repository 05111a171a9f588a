"""Studies: a matrix file alone, or a study.yaml that lists comparisons; the packaged ones are folders here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from grading.arms import NotAComparison, check_comparison
from grading.file_error import FileError, nearest
from grading.manifest import ResolvedStudy, resolve
from grading.matrix_file import Slug
from grading.yaml_file import Document, read
from simulator.model import WireModel

MATRIX_NAMES = ("matrix.yaml", "matrix.yml", "matrix.json")
STUDY_NAMES = ("study.yaml", "study.yml", "study.json")


class StudyFile(WireModel):
    """Comparisons that belong together: each is registered, run and exported by itself, one after the other."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""
    name: Slug = Field(examples=["refund-agent-release"])
    """What the study is called: small letters, digits and '-'."""
    comparisons: Annotated[list[str], Field(min_length=1, max_length=256)] = Field(
        examples=[["new-prompt.yaml", "control.yaml"]]
    )
    """Matrix files, relative to this file, each with exactly two conditions."""
    calibration: str | None = Field(None, examples=["calibration.jsonl"])
    """Calibration rows of executions that were made only to calibrate the judge, relative to this file. They are
    counted in the study and in no comparison."""


@dataclass(frozen=True)
class Study:
    """What ``cellwise run`` runs: one matrix, or the comparisons of a study file in its order."""

    name: str
    matrices: list[ResolvedStudy]
    of_comparisons: bool
    """Whether it is a study file's."""
    calibrating: int = 0
    """Executions that only calibrate a judge: part of the study, of no comparison."""

    @property
    def compared(self) -> int:
        """Executions that the comparisons plan."""
        manifests = [each.manifest for each in self.matrices]
        return sum(len(one.cases) * len(one.conditions) * one.repetitions for one in manifests)

    def executions(self) -> dict[str, int]:
        """How many executions the study is made of, and for what."""
        compared = self.compared
        return {"comparisons": compared, "calibration": self.calibrating, "total": compared + self.calibrating}


def list_studies() -> list[str]:
    """The names of the packaged studies."""
    folder = Path(__file__).parent
    return sorted({path.parent.name for name in ("matrix.yaml", "study.yaml") for path in folder.glob(f"*/{name}")})


def find_study(name_or_path: str) -> Path:
    """The study file or matrix file of a packaged study's name, of a file's path, or of a folder that holds one.

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
        for name in (*STUDY_NAMES, *MATRIX_NAMES):
            if (path / name).is_file():
                return path / name
        # A folder that happens to be called like a packaged study does not hide it.
        if name_or_path not in list_studies():
            raise FileError(path, None, None, "the folder holds no matrix.yaml and no study.yaml")
    if name_or_path in list_studies():
        folder = Path(__file__).parent / name_or_path
        return next(folder / name for name in ("study.yaml", "matrix.yaml") if (folder / name).is_file())
    message = f"there is no such file and no packaged study of that name:{nearest(name_or_path, list_studies())}"
    raise FileError(name_or_path, None, None, message)


def load_study(name_or_path: str) -> Study:
    """A study with everything resolved and checked, before anything of it is registered.

    Raises:
        FileError: with every problem found in any of its files; nothing was written.
    """
    path = find_study(name_or_path)
    # A study file is known by its field, so that it may have any name.
    document = read(path)
    if not document.has("comparisons"):
        matrix = resolve(path)
        return Study(matrix.manifest.name, [matrix], of_comparisons=False)
    study = document.load(StudyFile)
    matrices: list[ResolvedStudy] = []
    problems: list[FileError] = []
    seen: dict[str, str] = {}
    for index, written in enumerate(study.comparisons):
        where = ("comparisons", index)
        file = path.parent / written
        if not file.is_file():
            problems.append(document.error(where, f"there is no file '{written}'"))
            continue
        try:
            found = resolve(file)
            check_comparison(found.manifest)
        except FileError as error:
            problems += error.problems
            continue
        except NotAComparison as error:
            problems.append(document.error(where, f"'{written}': {error}"))
            continue
        name = found.manifest.name
        if name in seen:
            problems.append(document.error(where, f"'{written}' is called '{name}' like '{seen[name]}': rename one"))
        seen.setdefault(name, written)
        matrices.append(found)
    calibrating = 0
    if study.calibration is not None:
        try:
            calibrating = _calibrating(document, study.calibration, matrices)
        except FileError as error:
            problems += error.problems
    if problems:
        raise FileError.together(problems)
    return Study(study.name, matrices, of_comparisons=True, calibrating=calibrating)


def _calibrating(document: Document, written: str, matrices: list[ResolvedStudy]) -> int:
    """How many executions the calibration rows of a study are of.

    Raises:
        FileError: the rows cannot be read, are of one execution twice, or calibrate no judge of the study.
    """
    from grading.calibration.rows import read_rows

    where = ("calibration",)
    file = document.path.parent / written
    if not file.is_file():
        raise document.error(where, f"there is no file '{written}'")
    rows = read_rows(file)
    if len({row.evidence_hash for row in rows}) < len(rows):
        raise document.error(where, f"'{written}' holds the same evidence twice: each row must be another execution")
    judges = {each.manifest.judge.configuration_hash() for each in matrices if each.manifest.judge is not None}
    other = [row.id for row in rows if row.judgment is None or row.judgment.configuration_hash not in judges]
    if other:
        raise document.error(where, f"'{written}': the row '{other[0]}' is of no judge of this study")
    return len(rows)


def find_slice_plan(name_or_path: Path) -> Path:
    """The slice plan of a file's path, or the one that is packaged beside a study, by the study's name."""
    packaged = Path(__file__).parent / name_or_path / "slices.yaml"
    is_name = str(name_or_path) in list_studies()
    return packaged if is_name and not name_or_path.is_file() and packaged.is_file() else name_or_path
