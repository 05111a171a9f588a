"""Cases: what a customer asks, the business behind it, the scripted replies; and, apart, what the evaluator expects.

A cases file names its world: the world's own models say what a record and a setting are, its grader what an expectation
is and what makes a case contradict itself. A second world needs no change here.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, create_model

from grading.file_error import FileError, nearest
from grading.yaml_file import Document, read
from grading.yaml_values import Location
from simulator.model import WireModel

LONGEST_ID = 200


def _identifier(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    if len(text) > LONGEST_ID:
        raise ValueError(f"must be at most {LONGEST_ID} characters long, has {len(text)}")
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise ValueError("must not hold control characters such as a tab or a line break")
    if any(unicodedata.category(character) == "Cs" for character in text):
        raise ValueError("must not hold half of a surrogate pair, which no document can")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Identifier = Annotated[
    str, AfterValidator(_identifier), Field(json_schema_extra={"minLength": 1, "maxLength": LONGEST_ID})
]
"""1 to 200 characters without control characters; markup, quotes and spaces are as good as any."""
NotBlank = Annotated[str, AfterValidator(_not_blank), Field(json_schema_extra={"minLength": 1})]
WorldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class Case(WireModel):
    """One case with everything resolved, as the manifest holds it."""

    id: Identifier
    customer_id: Identifier
    utterance: NotBlank
    records: list[dict[str, JsonValue]]
    replies: list[str]
    world_settings: dict[str, JsonValue]
    expectation: dict[str, JsonValue]
    """What the grader's Expectation model holds; it never leaves grading."""
    labels: dict[str, str]


class WrittenCase(WireModel):
    """One case as a person writes it: the parts that every world has."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: Identifier = Field(examples=["explicit-description"])
    """The case's name, 1 to 200 characters, once in all files of a matrix."""
    customer_id: Identifier = Field(examples=["customer-1"])
    """Who writes; at least one record must be theirs."""
    utterance: NotBlank = Field(examples=["Refund the blue backpack bought on 2026-08-02."])
    """What the customer writes first."""
    replies: list[str] = Field([])
    """What the customer answers to the agent's questions, in order; after the last one, nothing."""
    labels: dict[str, str] = Field({})
    """Names and values of your own, to compare groups of cases by."""


class WrittenCases(WireModel):
    """A cases file as a person writes it: the parts that every world has."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""


@cache
def cases_file_model(world: str) -> type[BaseModel]:
    """The model of a cases file of that world.

    Raises:
        UnknownWorld, UnknownGrader: where there is none.
    """
    from grading.graders import load_grader
    from simulator.worlds import case_models

    of_world, expectation = case_models(world), load_grader(world).Expectation
    settings: Any = of_world.settings
    record: Any = of_world.record
    records: Any = list[record] | None
    case: Any = create_model(
        "Case",
        __base__=WrittenCase,
        __doc__="One case: what a customer asks, the records behind it, and what you expect.",
        records=(records, Field(None, description="The business records; without them, those of the whole file.")),
        world_settings=(settings, Field(settings(), description="What the world should do, such as a fault.")),
        expectation=(expectation, Field(description="What you expect of the agent, which never sees it.")),
    )
    name: Any = Literal[world]
    cases: Any = list[case]
    return create_model(
        "Cases",
        __base__=WrittenCases,
        __doc__=f"Cases of the world '{world}'.",
        world=(name, Field(description="Which business the agent acts on.")),
        records=(records, Field(None, description="Business records of every case that has none of its own.")),
        cases=(cases, Field(min_length=1, description="The cases, in the order they are run.")),
    )


def load_cases(paths: Sequence[Path]) -> tuple[str, list[Case]]:
    """The world and all cases of some files, in order.

    Raises:
        FileError: with every problem found in any of the files.
    """
    cases: list[Case] = []
    problems: list[FileError] = []
    places: dict[str, str] = {}
    first_world: tuple[str, Path] | None = None
    for path in paths:
        try:
            document = read(path)
            world = _world_of(document)
            if first_world is None:
                first_world = (world, path)
            elif world != first_world[0]:
                raise document.error(("world",), f"is '{world}', but '{first_world[0]}' in {first_world[1]}: use one")
            loaded: Any = document.load(cases_file_model(world))
        except FileError as error:
            problems += error.problems
            continue
        for index, written in enumerate(loaded.cases):
            where: Location = ("cases", index)
            place = f"{path}:{document.line((*where, 'id'))}"
            if places.setdefault(written.id, place) != place:
                problems.append(
                    document.error(
                        (*where, "id"), f"'{written.id}' is used already at {places[written.id]}: rename one"
                    )
                )
            cases.append(resolved_case(written, loaded.records))
            problems += _contradictions(document, where, written, loaded.records, world)
    if problems:
        raise FileError.together(problems)
    assert first_world is not None
    return first_world[0], cases


def known_worlds() -> list[str]:
    """The names of all worlds."""
    import pkgutil

    import simulator.worlds

    return sorted(module.name for module in pkgutil.iter_modules(simulator.worlds.__path__))


def _world_of(document: Document) -> str:
    world = document.text("world")
    if world is None:
        raise document.error(("world",), f"the field 'world' is missing: name one of {', '.join(known_worlds())}")
    if world not in known_worlds():
        raise document.error(("world",), f"no world is called '{world}':{nearest(world, known_worlds())}")
    return world


def resolved_case(written: Any, shared: Sequence[BaseModel] | None) -> Case:
    """A written case with everything that it leaves to its file or its world."""
    records = written.records if written.records is not None else shared or []
    return Case(
        id=written.id,
        customer_id=written.customer_id,
        utterance=written.utterance,
        records=[record.model_dump(mode="json") for record in records],
        replies=written.replies,
        world_settings=written.world_settings.model_dump(mode="json"),
        expectation=written.expectation.model_dump(mode="json"),
        labels=written.labels,
    )


def _contradictions(
    document: Document, case: Location, written: Any, shared: Sequence[BaseModel] | None, world: str
) -> Iterable[FileError]:
    """What is wrong between the parts of a case, each part being valid by its own model."""
    from grading.graders import load_grader

    own = written.records is not None
    records = [record.model_dump(mode="json") for record in (written.records if own else shared or [])]
    for position, record in enumerate(records):
        for name, value in record.items():
            if name.endswith("_id") and isinstance(value, str):
                try:
                    _identifier(value)
                except ValueError as wrong:
                    where = (*case, "records", position, name) if own else ("records", position, name)
                    yield document.error(where, str(wrong))
    problems = load_grader(world).check_case(records, written.customer_id, written.replies, written.expectation)
    for problem in problems:
        path, message = problem.split(": ", 1)
        parts: Location = tuple(int(part) if part.isdigit() else part for part in path.split("."))
        if parts[0] == "request":
            parts = parts[1:]
        elif parts[0] == "records" and not own:
            # The file's records are at fault for this case: say which one, since another may be content with them.
            error = document.error(parts, f"{message} (case '{written.id}')")
            yield error if shared is not None else document.error(case, f"{path}: {message}")
            continue
        yield document.error((*case, *parts), message)
