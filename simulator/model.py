"""The strictness that every wire format of Cellwise shares."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_EXACT = "cellwise_exact"
_NO_SCHEMAS = frozenset({"metadata", "default", "expected", "serialization"})


def _exact(schema: Any) -> Any:
    """A schema in which every literal of numbers or truth values takes nothing that only equals them."""
    if isinstance(schema, list | tuple):
        return type(schema)(_exact(item) for item in schema)
    if not isinstance(schema, dict) or _EXACT in (schema.get("metadata") or {}):
        return schema
    if schema.get("type") == "literal":
        literal = cast("core_schema.LiteralSchema", schema)
        return _exact_literal(literal) if any(isinstance(value, int) for value in literal["expected"]) else schema
    return {name: item if name in _NO_SCHEMAS else _exact(item) for name, item in schema.items()}


def _exact_literal(literal: core_schema.LiteralSchema) -> CoreSchema:
    expected = literal["expected"]
    kinds: list[tuple[CoreSchema | None, list[Any]]] = [
        (core_schema.bool_schema(strict=True), [value for value in expected if type(value) is bool]),
        (core_schema.int_schema(strict=True), [value for value in expected if type(value) is int]),
        (None, [value for value in expected if not isinstance(value, int)]),
    ]
    choices: list[CoreSchema | tuple[CoreSchema, str]] = []
    for kind, values in kinds:
        if values:
            among = core_schema.literal_schema(values)
            choices.append(among if kind is None else core_schema.chain_schema([kind, among]))
    return core_schema.custom_error_schema(
        core_schema.union_schema(choices),
        # The error and the JSON Schema are those of the literal.
        custom_error_type="literal_error",
        custom_error_context={"expected": " or ".join(repr(value) for value in expected)},
        metadata={_EXACT: True, "pydantic_js_functions": [lambda _, handler: handler(literal)]},
    )


class WireModel(BaseModel):
    """A versioned document, or a part of one: unknown fields are refused and no value is turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Makes the literal numbers and truth values among the fields as strict as all others.

        pydantic looks a literal up by equality even in strict mode, so ``true`` and ``1.0`` pass for ``Literal[1]``.
        """
        return cast("CoreSchema", _exact(handler(source)))
