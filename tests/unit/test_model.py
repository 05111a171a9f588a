"""No document passes with a value that only equals the one it must have: true and 1.0 are not the version 1."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

import grading
import simulator
from simulator.model import WireModel

MODULES_WITH_EFFECTS = {"grading.store.migrations.env"}


def every_model() -> list[type[WireModel]]:
    for package in (grading, simulator):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in MODULES_WITH_EFFECTS and not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    models = list(subclasses(WireModel))
    return sorted({model for model in models if not model.__module__.startswith("test")}, key=str)


def subclasses(model: type[WireModel]) -> Iterator[type[WireModel]]:
    for each in model.__subclasses__():
        yield each
        yield from subclasses(each)


def numbers(annotation: Any) -> set[Any]:
    """The numbers and truth values among an annotation's literals."""
    if get_origin(annotation) is Literal:
        return {value for value in get_args(annotation) if isinstance(value, int)}
    return {value for inner in get_args(annotation) for value in numbers(inner)}


def complaints(model: type[WireModel], field: str, value: Any, *, as_json: bool) -> list[str]:
    document = {field: value}
    with pytest.raises(ValidationError) as caught:  # at least because other fields are missing
        model.model_validate_json(json.dumps(document)) if as_json else model.model_validate(document)
    return [error["type"] for error in caught.value.errors() if error["loc"][:1] == (field,)]


def test_every_wire_format_takes_exactly_its_version() -> None:
    formats = [model for model in every_model() if "version" in model.model_fields]
    versions = [(model, numbers(model.model_fields["version"].annotation)) for model in formats]
    registered = [model for model, expected in versions if expected]
    names = {model.__name__ for model in registered}
    assert names >= {
        "Manifest", "Ledger", "Envelope", "Content", "Assignment", "GradeDocument", "Judgment", "Receipt",
        "CalibrationRow", "CalibrationRecord", "RegistryFile", "MatrixFile", "SlicePlan", "Policy", "JudgeFile",
    }, names  # fmt: skip
    for model in registered:
        for as_json in (True, False):
            for value in (True, 1.0, "1", 2, None, [1]):
                assert complaints(model, "version", value, as_json=as_json) == ["literal_error"], (model, value)


def test_so_does_every_other_literal_of_numbers_or_truth_values() -> None:
    class Inner(WireModel):
        kind: Literal[0, 2]

    class Example(WireModel):
        sure: Literal[True]
        inner: Inner | Literal[1, "one"] | None = None
        many: list[Literal[3]] = []

    assert Example.model_validate({"sure": True, "inner": {"kind": 2}, "many": [3]}).many == [3]
    assert Example.model_validate_json('{"sure":true,"inner":1}').inner == 1
    assert Example.model_validate_json('{"sure":true,"inner":"one"}').inner == "one"
    for document in (
        '{"sure":1}', '{"sure":1.0}', '{"sure":true,"inner":true}', '{"sure":true,"inner":1.0}',
        '{"sure":true,"inner":{"kind":false}}', '{"sure":true,"inner":{"kind":2.0}}', '{"sure":true,"many":[3.0]}',
    ):  # fmt: skip
        for read in (Example.model_validate_json, lambda text: Example.model_validate(json.loads(text))):
            with pytest.raises(ValidationError):
                read(document)


def test_published_schemas_still_say_the_value() -> None:
    class Example(WireModel):
        version: Literal[1]

    assert Example.model_json_schema()["properties"]["version"] == {"const": 1, "title": "Version", "type": "integer"}
