"""A study file lists comparisons, and nothing of it is run if one of them is none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grading.arms import NotAComparison, check_comparison
from grading.file_error import FileError
from grading.manifest import resolve
from grading.studies import find_study, list_studies, load_study

Write = Callable[[str, str], Path]

MATRIX = """\
version: 1
name: NAME
cases: cases.yaml
conditions:
  - {name: baseline, agent: descriptive-control}
  - {name: candidate, agent: descriptive-control}
baseline: baseline
repetitions: 2
"""


@pytest.fixture
def study(write: Write) -> Path:
    write("cases.yaml", (find_study("order-resolution").parent / "cases.yaml").read_text())
    write("one.yaml", MATRIX.replace("NAME", "one"))
    write("two.yaml", MATRIX.replace("NAME", "two"))
    return write("study.yaml", "version: 1\nname: both\ncomparisons: [one.yaml, two.yaml]\n")


def test_packaged_studies() -> None:
    assert list_studies() == ["native-semantic", "order-resolution", "paired-order-resolution"]
    executions = {}
    for name in list_studies():
        loaded = load_study(name)
        assert loaded.name == name
        for each in loaded.matrices:
            check_comparison(each.manifest)
            assert each.manifest.schedule.order == "strict"
            assert each.manifest.conditions[0].agent.name == "descriptive-control"
        executions[name] = sum(len(list(each.manifest.planned())) for each in loaded.matrices)
    # Four more of native-semantic calibrate its judge, in no comparison.
    assert executions == {"native-semantic": 48, "order-resolution": 16, "paired-order-resolution": 32}


def test_a_study_is_found_by_its_file_and_its_folder(study: Path, tmp_path: Path) -> None:
    for word in (str(study), str(tmp_path)):
        loaded = load_study(word)
        assert (loaded.name, loaded.of_comparisons) == ("both", True)
        assert [each.manifest.name for each in loaded.matrices] == ["one", "two"]
    renamed = study.rename(tmp_path / "mine.yaml")
    assert load_study(str(renamed)).of_comparisons
    assert load_study(str(tmp_path / "one.yaml")).of_comparisons is False


def test_equal_settings_are_two_arms(study: Path, tmp_path: Path) -> None:
    baseline, candidate = resolve(tmp_path / "one.yaml").manifest.conditions
    assert (baseline.agent, baseline.limits) == (candidate.agent, candidate.limits)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("baseline: baseline\n", "", "it needs a baseline"),
        ("repetitions: 2", "repetitions: 3", "an even number of repetitions"),
        ("repetitions: 2", "repetitions: 2\npresented_order: forward", "presented_order alternate, not forward"),
        (
            "baseline: b",
            "  - {name: more, agent: descriptive-control}\nbaseline: b",
            "exactly two conditions and has 3",
        ),
    ],
)
def test_what_is_no_comparison_is_refused_where_the_study_names_it(
    study: Path, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    two = tmp_path / "two.yaml"
    two.write_text(two.read_text().replace(old, new, 1))
    with pytest.raises(NotAComparison, match=reason):
        check_comparison(resolve(two).manifest)
    with pytest.raises(FileError, match=reason) as caught:
        load_study(str(study))
    assert [(Path(each.path).name, each.line) for each in caught.value.problems] == [("study.yaml", 3)]


def test_all_problems_of_all_files_are_told_together(study: Path, tmp_path: Path) -> None:
    study.write_text("version: 1\nname: both\ncomparisons: [one.yaml, none.yaml, two.yaml, one.yaml]\n")
    two = tmp_path / "two.yaml"
    two.write_text(two.read_text().replace("repetitions: 2", "repetitions: two"))
    with pytest.raises(FileError) as caught:
        load_study(str(study))
    messages = [each.message for each in caught.value.problems]
    assert len(messages) == 3
    assert any("there is no file 'none.yaml'" in message for message in messages)
    assert any("is called 'one' like 'one.yaml'" in message for message in messages)


@pytest.mark.parametrize("comparisons", ["[]", "one.yaml", "[1.yaml]"])
def test_a_study_without_comparisons_is_refused(study: Path, comparisons: str) -> None:
    study.write_text(f"version: 1\nname: both\ncomparisons: {comparisons}\n")
    with pytest.raises(FileError):
        load_study(str(study))
