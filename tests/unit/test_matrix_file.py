"""A matrix file says what is run; its defaults are documented, and its mistakes are told with their lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grading.file_error import FileError
from grading.matrix_file import MatrixFile, case_files, read_matrix
from grading.schemas import cases_schema, matrix_schema, policy_schema, slices_schema
from simulator.assignment import Limits

IMAGE = f"registry.example:5000/team/refund-agent@sha256:{'0123456789abcdef' * 4}"

Write = Callable[[str, str], Path]

LEAST = """\
version: 1
name: study
cases: cases.yaml
conditions:
  - name: control
    agent: descriptive-control
"""


def matrix(write: Write, content: str) -> MatrixFile:
    return read_matrix(write("matrix.yaml", content))[1]


def problems(write: Write, content: str) -> list[tuple[int | None, str]]:
    with pytest.raises(FileError) as caught:
        matrix(write, content)
    return [(each.line, each.message) for each in caught.value.problems]


def test_defaults(write: Write) -> None:
    read = matrix(write, LEAST)
    assert read.model_dump(mode="json") == {
        "version": 1, "name": "study", "cases": "cases.yaml",
        "conditions": [{"name": "control", "agent": "descriptive-control", "settings": {}, "env": [], "sources": [],
                        "image": None, "provider": None, "reuse": None, "limits": None}],
        "baseline": None, "repetitions": 1, "presented_order": "alternate", "order": "parallel",
        "graders": ["structural"], "judge": None, "calibration": None, "registry": None, "redaction": None,
        "limits": Limits().model_dump(mode="json"), "parallelism": None, "trials_per_pod": 1, "seed": None,
        "isolation": "process", "slice_plan": None, "estimand": "difference in contract passes", "margin": "0.03",
        "confidence": "0.95",
        "minimum_clusters": 30, "measurement_profile": "measured",
    }  # fmt: skip


def test_an_agent_may_come_from_an_image(write: Write) -> None:
    own = LEAST.replace("descriptive-control", "own:answer")
    read = matrix(write, own + f"    image: {IMAGE}\n    provider: openai\ntrials_per_pod: 20\nisolation: container\n")
    assert (read.conditions[0].image, read.conditions[0].provider) == (IMAGE, "openai")
    assert (read.trials_per_pod, read.isolation) == (20, "container")
    tagged = IMAGE.replace("@", ":1.0@").replace("registry.example:5000", "localhost")
    assert matrix(write, own + f"    image: {tagged}\n").conditions[0].image == tagged


def test_zero_is_a_seed_and_limits_may_be_below_a_second(write: Write) -> None:
    read = matrix(write, LEAST + "seed: 0\nlimits: {seconds: 0.5}\nmargin: 0.030\n")
    assert read.seed == 0
    assert read.limits.seconds == 0.5
    assert read.margin == "0.03"


def test_settings_keep_what_was_written(write: Write) -> None:
    read = matrix(
        write, LEAST + "    settings: {a: 0.2, b: no, c: 1e3, d: 0510210600, e: null, f: [true, {g: 2026-08-01}]}"
    )
    assert read.conditions[0].settings == {
        "a": 0.2, "b": "no", "c": "1e3", "d": "0510210600", "e": None, "f": [True, {"g": "2026-08-01"}]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "line", "message"),
    [
        ("limits: {seconds: 0}", 7, "limits.seconds: must be above 0"),
        ("limits: {seconds: -1.5}", 7, "limits.seconds: must be above 0"),
        ("limits: {second: 1}", 7, "unknown field 'second': did you mean 'seconds'?"),
        ("seed: -1", 7, "seed: must be at least 0"),
        ("repetitions: 0", 7, "repetitions: must be at least 1"),
        ("repetitions: 10001", 7, "repetitions: must be at most 10000"),
        ("repetitions: 2.0", 7, "repetitions: must be an integer, not '2.0': write it without a fraction"),
        ("parallelism: 257", 7, "parallelism: must be at most 256"),
        ("parallelism: 0", 7, "parallelism: must be at least 1"),
        ("baseline: contrl", 7, "baseline: no condition is called 'contrl': did you mean 'control'? (known: control)"),
        ("order: sequential", 7, "order: 'sequential' is not possible here: (known: parallel, strict)"),
        ("presented_order: reverse", 7, "presented_order: 'reverse' is not possible here: did you mean 'reversed'?"),
        ("graders: [semantic]", 7, "graders[0]: must be structural, not 'semantic'"),
        ("graders: [structural, structural]", 7, "graders[1]: 'structural' is named twice"),
        ("margin: 1", 7, "margin: must be at least 0 and below 1"),
        ("margin: -0.1", 7, "margin: '-0.1' is no decimal such as 0.03"),
        ("margin: 3e-2", 7, "margin: '3e-2' is no decimal such as 0.03"),
        ("confidence: 0.4", 7, "confidence: must be at least 0.5 and below 1"),
        (
            "measurement_profile: invented",
            7,
            "measurement_profile: must be measured or a mapping with the fields synthetic",
        ),
        ("measurement_profile: {synthetic: {latency_ms: 1}}", 7, "the field 'cost' is missing"),
        ("isolation: user", 7, "isolation: 'user' is not possible here: (known: container, process)"),
        (
            "isolation: container",
            5,
            "conditions[0]: 'control' has no image, which isolation: container needs: write image",
        ),
        (f"    image: {IMAGE}", 7, "conditions[0].image: 'descriptive-control' is a packaged agent"),
        ("    image: registry.example/agent:1.0", 7, "conditions[0].image: 'registry.example/agent:1.0' has no digest"),
        ("    image: agent@sha256:abc", 7, "conditions[0].image: 'agent@sha256:abc' is no image such as registry."),
        (f"    image: {IMAGE[:-1]}G", 7, "is no image such as registry.example/team/agent@sha256: and 64 of 0-9 and"),
        (f"    image: {IMAGE.rpartition('/')[2]}", 7, "is no image such as registry.example/team/agent@sha256: and 64"),
        (f"    image: 'a b/{IMAGE}'", 7, "is no image such as registry.example/team/agent@sha256: and 64 of 0-9 and"),
        ("    provider: Open AI", 7, "conditions[0].provider: must be 1 to 63 of a-z, 0-9 and '-'"),
        ("trials_per_pod: 0", 7, "trials_per_pod: must be "),
        ("trials_per_pod: 1001", 7, "trials_per_pod: must be "),
        ("trials_per_pod: 2.0", 7, "trials_per_pod: "),
        ("    env: [A=b]", 7, "conditions[0].env[0]: is no name of an environment variable: give the name alone"),
        ("    env: [A, A]", 7, "conditions[0].env[1]: 'A' is named twice"),
        ("    agents: x", 7, "conditions[0]: unknown field 'agents': did you mean 'agent'?"),
        ("  - {name: control, agent: x}", 7, "'control' is the name of another condition on line 5: rename one"),
        ("judge: x", 7, "judge: must be literal or a mapping with the fields"),
        ("registry: r.yaml", 7, "registry: is asked about a calibration, and none is named: write calibration"),
        (f"calibration: sha256:{'0' * 64}", 7, "calibration: there is no judge that could count by it: write judge"),
        ("judgement: literal", 7, "unknown field 'judgement': did you mean 'judge'?"),
    ],
)
def test_mistakes_are_told_with_their_lines(write: Write, more: str, line: int, message: str) -> None:
    told = problems(write, LEAST + more + "\n")
    assert len(told) == 1, told
    assert told[0][0] == line
    assert message in told[0][1]


def test_a_name_is_a_slug(write: Write) -> None:
    for name in ("My Study", "-a", "a" * 64, "a_b"):
        ((line, message),) = problems(write, LEAST.replace("study", name))
        assert (line, message.split(":")[0]) == (2, "name")
    assert matrix(write, LEAST.replace("study", "a" * 63)).name == "a" * 63


def test_measurement_profile_of_invented_figures(write: Write) -> None:
    read = matrix(write, LEAST + "measurement_profile:\n  synthetic: {latency_ms: 250, cost: 0.08}\n")
    assert read.model_dump()["measurement_profile"] == {"synthetic": {"latency_ms": 250, "cost": "0.08"}}


def test_cases_by_file_folder_glob_and_list(write: Write, tmp_path: Path) -> None:
    for name in ("cases/b.yaml", "cases/a.yml", "cases/c.json", "cases/.hidden.yaml", "cases/notes.txt", "one.yaml"):
        write(name, "x")

    def found(entry: str) -> list[str]:
        document, read = read_matrix(write("matrix.yaml", LEAST.replace("cases.yaml", entry)))
        return [path.relative_to(tmp_path).as_posix() for path in case_files(document, read)]

    assert found("one.yaml") == ["one.yaml"]
    assert found("cases") == ["cases/a.yml", "cases/b.yaml", "cases/c.json"]
    assert found("cases/*.yaml") == ["cases/b.yaml"]
    assert found("[one.yaml, cases/*.y*ml, cases/b.yaml]") == ["one.yaml", "cases/a.yml", "cases/b.yaml"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("absent.yaml", "cases: there is no file 'absent.yaml' in "),
        ("empty", "cases: the folder 'empty' holds no cases file (.yaml, .yml, .json)"),
        ("empty/*.yaml", "cases: no file fits 'empty/*.yaml'"),
        ("[]", "cases: names no cases file: write for example cases.yaml"),
        ("['']", "cases[0]: must not be blank: name a cases file"),
    ],
)
def test_cases_that_are_not_there(write: Write, tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    document, read = read_matrix(write("matrix.yaml", LEAST.replace("cases.yaml", entry)))
    with pytest.raises(FileError) as caught:
        case_files(document, read)
    assert caught.value.line == 3
    assert caught.value.message.startswith(message)


def test_editors_get_schemas_with_descriptions() -> None:
    for schema in (matrix_schema(), cases_schema("orders"), slices_schema(), policy_schema()):
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        for definition in (schema, *(each for each in schema.get("$defs", {}).values() if "properties" in each)):
            assert definition["additionalProperties"] is False
    described = {
        f"{name}.{field}": "description" in of_field
        for schema in (matrix_schema(), cases_schema("orders"))
        for name, definition in (("", schema), *schema["$defs"].items())
        for field, of_field in definition.get("properties", {}).items()
    }
    assert described[".repetitions"]
    assert described["Limits.seconds"]
    assert described["Case.expectation"]
    assert described["Order.eligible"]
    # What an editor takes for a number is text all the same.
    assert cases_schema("orders")["$defs"]["Order"]["properties"]["order_id"]["type"] == ["string", "number", "boolean"]
