"""`init` writes a study that can be run at once, and never touches a file that is there."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import orders_cases
import pytest
from in_process_trial import graded

from grading import init
from grading.cases import Case
from grading.file_error import FileError
from grading.graders.orders import Expectation
from grading.init import create_study
from grading.manifest import resolve

FILES = ["matrix.yaml", "cases.yaml", "agent.py", "schemas/matrix.schema.json", "schemas/cases.schema.json"]


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_new_study_resolves_with_its_own_agent(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "study"
    assert [path.relative_to(folder).as_posix() for path in create_study(folder)] == FILES
    assert files_in(tmp_path / "deep") == sorted("study/" + name for name in FILES)
    study = resolve(folder / "matrix.yaml")
    assert [condition.name for condition in study.manifest.conditions] == ["current", "never-asks"]
    assert [condition.agent.name for condition in study.manifest.conditions] == ["agent:answer"] * 2
    assert [case.id for case in study.manifest.cases] == ["one-fits", "two-fit", "no-answer", "not-eligible"]
    assert files_in(tmp_path / "deep") == sorted("study/" + name for name in FILES)


def test_its_agent_passes_and_the_one_that_never_asks_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    create_study(folder)
    manifest = resolve(folder / "matrix.yaml").manifest
    spec = spec_from_file_location("new_study_agent", folder / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    passed = {
        condition.name: [
            graded(module.answer, in_process(case), backwards=backwards, **condition.agent.settings).verdict == "passed"
            for backwards in (False, True)
            for case in manifest.cases
        ]
        for condition in manifest.conditions
    }
    assert passed == {
        "current": [True, True, True, True, True, True, True, True],
        "never-asks": [True, False, False, True, True, False, False, True],
    }


def in_process(case: Case) -> orders_cases.Case:
    return orders_cases.Case(
        utterance=case.utterance,
        expectation=Expectation.model_validate(case.expectation),
        replies=case.replies,
        records=case.records,
        settings=case.world_settings,
        customer_id=case.customer_id,
    )


def test_editors_find_the_schemas_that_the_files_name(tmp_path: Path) -> None:
    for path in create_study(tmp_path / "study")[:2]:
        first = path.read_text().splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema=schemas/")
        schema = json.loads((path.parent / first.split("$schema=")[1]).read_text())
        assert schema["properties"]["version"]["const"] == 1


def test_an_existing_folder_is_added_to(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create_study(tmp_path)
    assert files_in(tmp_path) == sorted([*FILES, "notes.txt"])
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten_and_nothing_else_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileError) as caught:
        create_study(tmp_path)
    assert str(caught.value) == f"{tmp_path / name}: is there already, nothing was written: name another folder"
    assert files_in(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("mine")
    with pytest.raises(FileError, match="is no folder"):
        create_study(tmp_path / "study")
    with pytest.raises(FileError, match=r"cannot be written: .*; nothing was"):
        create_study(tmp_path / "study" / "inner")
    assert (tmp_path / "study").read_text() == "mine"


@pytest.mark.parametrize("there", [True, False])
def test_a_failure_midway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    folder = tmp_path / "study"
    if there:
        folder.mkdir()
    contents = init._contents(tmp_path / "study")
    # The last file cannot be encoded, like one that no longer fits on the disk.
    monkeypatch.setattr(init, "_contents", lambda _: {**contents, "schemas/last.json": "\ud800"})
    with pytest.raises(UnicodeEncodeError):
        create_study(folder)
    assert list(tmp_path.rglob("*")) == ([folder] if there else [])
