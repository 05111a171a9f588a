"""JSON Schemas of the files that a person writes, so that an editor completes and checks them while typing.

They are a help, more lenient than the reader: an editor takes ``description: 42`` for a number, where a text field
keeps what was written.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from grading.cases import cases_file_model
from grading.judge.configuration import JudgeFile
from grading.matrix_file import MatrixFile
from grading.slices import SlicePlan

DIALECT = GenerateJsonSchema.schema_dialect


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema of a matrix file."""
    return _friendly(MatrixFile, "Cellwise matrix file")


def judge_schema() -> dict[str, Any]:
    """The JSON Schema of a judge file."""
    return _friendly(JudgeFile, "Cellwise judge file")


def cases_schema(world: str) -> dict[str, Any]:
    """The JSON Schema of a cases file of that world.

    Raises:
        UnknownWorld, UnknownGrader: where there is none.
    """
    return _friendly(cases_file_model(world), f"Cellwise cases of the world {world}")


def slices_schema() -> dict[str, Any]:
    """The JSON Schema of a slice plan."""
    return _friendly(SlicePlan, "Cellwise slice plan")


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a release policy."""
    from grading.policy import Policy

    return _friendly(Policy, "Cellwise release policy")


def _friendly(model: type[BaseModel], title: str) -> dict[str, Any]:
    schema = model.model_json_schema()
    descriptions = {each.__name__: _descriptions(each) for each in _models(model)}
    for name, definition in {**schema.get("$defs", {}), model.__name__: schema}.items():
        definition.pop("title", None)
        for field, of_field in definition.get("properties", {}).items():
            of_field.pop("title", None)
            if "description" not in of_field and field in descriptions.get(name, {}):
                of_field["description"] = descriptions[name][field]
    return {"$schema": DIALECT, "title": title, **_lenient(schema)}


def _lenient(schema: Any) -> Any:
    """Text fields take what an editor believes to be a number or a boolean."""
    if isinstance(schema, list):
        return [_lenient(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    lenient = {key: value if key in ("examples", "default") else _lenient(value) for key, value in schema.items()}
    if schema.get("type") == "string" and not {"enum", "const"} & schema.keys():
        lenient["type"] = ["string", "number", "boolean"]
    return lenient


def _models(annotation: Any) -> set[type[BaseModel]]:
    """Every model below an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return {annotation}.union(*(_models(field.annotation) for field in fields))
    return set().union(*(_models(argument) for argument in getattr(annotation, "__args__", ())))


@cache
def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The strings below a model's fields: where a field is described once, for its readers and its writers."""
    try:
        body = ast.parse(dedent(inspect.getsource(model))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}  # a model made at run time: its fields bring their descriptions
    found = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for statement, following in pairwise(statements):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found
