"""The manifest holds everything that decides what results mean, nothing of the machine, and one hash."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grading.file_error import FileError
from grading.manifest import Manifest, ResolvedStudy, assignment, differences, resolve, trial_key
from grading.studies import find_study, list_studies
from simulator.assignment import Limits
from simulator.source import source_hash

Write = Callable[[str, str], Path]

GOLDEN = Path(__file__).parent / "golden" / "order-resolution.manifest.json"
SUBSTITUTED = "sha256:" + "0" * 64

CASES = """\
version: 1
world: orders
records:
  - {order_id: order-a, customer_id: customer-1, description: a hat, amount_cents: 4000, currency: USD, eligible: true}
  - {order_id: order-b, customer_id: customer-1, description: a coat, amount_cents: 4500, currency: EUR, eligible: true}
  - {order_id: order-c, customer_id: customer-2, description: a hat, amount_cents: 4000, currency: USD, eligible: true}
cases:
  - id: hat
    customer_id: customer-1
    utterance: Refund the hat.
    replies: [The hat.]
    expectation: {order: order-a, clarifications: 0}
    labels: {kind: secret-label}
"""
MATRIX = """\
version: 1
name: study
cases: cases.yaml
conditions:
  - name: mine
    agent: my_agent:answer
    settings: {temperature: 0}
  - name: control
    agent: quick-reader
baseline: control
repetitions: 2
"""
AGENT = """\
from helper import tone

def answer(request, tools, temperature=0, **others):
    return None
"""


@pytest.fixture
def study(write: Write, packaged_agents: Path) -> Path:
    write("cases.yaml", CASES)
    write("my_agent.py", AGENT)
    write("helper.py", "tone = 'plain'\n")
    return write("matrix.yaml", MATRIX)


def changed(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def problems(matrix: Path) -> list[tuple[str, int | None, str]]:
    with pytest.raises(FileError) as caught:
        resolve(matrix)
    return [(Path(each.path).name, each.line, each.message) for each in caught.value.problems]


def with_agent(study: Path, agent: str, more: str = "") -> list[tuple[str, int | None, str]]:
    changed(study, "my_agent:answer", agent)
    if more:
        changed(study, "    settings: {temperature: 0}\n", more)
    return problems(study)


def substituted(value: Any) -> Any:
    """A document without what changes with every edit of a source file."""
    if isinstance(value, dict):
        return {
            key: SUBSTITUTED
            if isinstance(item, str) and item.startswith("sha256:")
            else "0.0.0"
            if key == "version" and isinstance(item, str)
            else substituted(item)
            for key, item in value.items()
        }
    return [substituted(item) for item in value] if isinstance(value, list) else value


def test_the_manifest_of_the_packaged_study_is_the_golden_one() -> None:
    """A changed format needs a new version: write the golden file anew only together with that."""
    study = resolve(find_study("order-resolution"))
    document = substituted(json.loads(study.manifest.document()))
    if os.environ.get("CELLWISE_WRITE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    assert document == json.loads(GOLDEN.read_text())


def test_golden_manifest_still_loads() -> None:
    loaded = Manifest.from_document(GOLDEN.read_bytes())
    assert json.loads(loaded.document()) == json.loads(GOLDEN.read_text())
    assert loaded.hash() == "sha256:48e0b290cf307c0a0dfb2f7136ad74fc1c2610793b648b2c48abc9d1d2d88b0f"


def test_loading_back_gives_the_same_hash(study: Path) -> None:
    changed(
        study, "{temperature: 0}", "{temperature: 0, top_p: 2.0, big: 123456.789, text: 1e3, deep: [0.1, {a: -0.0}]}"
    )
    changed(study, "repetitions: 2", "repetitions: 2\nmargin: 0.0300\nlimits: {seconds: 0.1}\nseed: 0")
    manifest = resolve(study).manifest
    again = Manifest.from_document(manifest.document())
    assert again == manifest
    assert again.hash() == manifest.hash()
    assert again.document() == manifest.document()
    assert (manifest.margin, manifest.seed, manifest.conditions[1].limits.seconds) == ("0.03", 0, 0.1)


def test_nothing_of_the_machine_is_in_it(study: Path, tmp_path: Path) -> None:
    changed(study, "repetitions: 2", "repetitions: 2\nparallelism: 3")
    before = resolve(study)
    assert before.parallelism == 3
    assert before.agent_root == tmp_path
    assert str(tmp_path).encode() not in before.manifest.document()
    assert b"parallelism" not in before.manifest.document()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("cases.yaml", "my_agent.py", "helper.py", "matrix.yaml"):
        shutil.move(tmp_path / name, moved / name)
    changed(moved / "matrix.yaml", "parallelism: 3", "parallelism: 4")
    assert resolve(moved / "matrix.yaml").manifest.hash() == before.manifest.hash()


def test_the_baseline_is_condition_0_wherever_it_is_written(study: Path) -> None:
    manifest = resolve(study).manifest
    assert [condition.name for condition in manifest.conditions] == ["control", "mine"]
    assert [each.condition for each in manifest.planned()] == [0, 1, 1, 0]


def test_an_assignment_holds_no_expectation_no_id_and_no_arm(study: Path) -> None:
    manifest = resolve(study).manifest
    forward, backward = assignment(manifest, 0, 1, 0), assignment(manifest, 0, 1, 1)
    assert [record["order_id"] for record in forward.records] == ["order-a", "order-b", "order-c"]
    assert backward.records == forward.records[::-1]
    assert backward.model_copy(update={"records": forward.records}) == forward
    text = forward.model_dump_json()
    for secret in ("expectation", "clarifications", '"hat"', "secret-label", '"mine"', "control"):
        assert secret not in text
    assert forward.agent.settings == {"temperature": 0}
    assert forward.replies == ["The hat."]


def test_trial_keys_bind_assignment_repetition_and_simulator(study: Path) -> None:
    manifest = resolve(study).manifest
    simulator = manifest.simulator.model_dump()
    first = trial_key(assignment(manifest, 0, 1, 0).hash(), 0, simulator)
    assert first == trial_key(assignment(manifest, 0, 1, 0).hash(), 0, dict(reversed(simulator.items())))
    others = {
        trial_key(assignment(manifest, 0, 0, 0).hash(), 0, simulator),
        trial_key(assignment(manifest, 0, 1, 1).hash(), 1, simulator),
        trial_key(assignment(manifest, 0, 1, 0).hash(), 2, simulator),
        trial_key(assignment(manifest, 0, 1, 0).hash(), 0, {**simulator, "version": "9"}),
    }
    assert len(others | {first}) == 5
    # What only the evaluator sees is no part of it.
    changed(study.parent / "cases.yaml", "kind: secret-label", "kind: other")
    changed(study.parent / "cases.yaml", "clarifications: 0", "clarifications: 1")
    regraded = resolve(study).manifest
    assert regraded.hash() != manifest.hash()
    assert trial_key(assignment(regraded, 0, 1, 0).hash(), 0, simulator) == first


def test_a_conditions_limits_override_only_what_they_name(study: Path) -> None:
    changed(study, "    settings: {temperature: 0}", "    limits: {seconds: 0.5}")
    changed(study, "repetitions: 2", "limits: {tool_calls: 7}")
    control, mine = resolve(study).manifest.conditions
    assert control.limits == Limits(tool_calls=7)
    assert mine.limits == Limits(seconds=0.5, tool_calls=7)


def differs(study: Path, file: Path, old: str, new: str) -> list[str]:
    before: ResolvedStudy = resolve(study)
    changed(file, old, new)
    source_hash.cache_clear()
    after = resolve(study)
    assert differences(before.manifest, before.manifest) == []
    assert after.manifest.hash() != before.manifest.hash()
    return differences(before.manifest, after.manifest)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("matrix.yaml", "temperature: 0", "temperature: 0.2", ["condition mine: settings.temperature 0 -> 0.2"]),
        ("matrix.yaml", "temperature: 0", 'temperature: "0"', ['condition mine: settings.temperature 0 -> "0"']),
        ("matrix.yaml", "temperature: 0", "top_p: 1", [
            "condition mine: settings.temperature 0 -> absent", "condition mine: settings.top_p absent -> 1"]),
        ("matrix.yaml", "name: mine", "name: yours", ["condition mine: removed", "condition yours: added"]),
        ("matrix.yaml", "repetitions: 2", "repetitions: 4", ["repetitions 2 -> 4"]),
        ("matrix.yaml", "repetitions: 2", "repetitions: 2\nseed: 0", ["seed null -> 0"]),
        ("matrix.yaml", "repetitions: 2", "repetitions: 2\norder: strict", ['schedule.order "parallel" -> "strict"']),
        ("matrix.yaml", "repetitions: 2", "repetitions: 2\nlimits: {seconds: 1}", [
            "condition control: limits.seconds 60 -> 1", "condition mine: limits.seconds 60 -> 1"]),
        ("cases.yaml", "Refund the hat.", "Refund it.", ['case hat: utterance "Refund the hat." -> "Refund it."']),
        ("cases.yaml", "Refund the hat.", "Refund the hat. " * 5, ["case hat: utterance"]),
        ("cases.yaml", "a coat", "a scarf", ['case hat: records[1].description "a coat" -> "a scarf"']),
        ("cases.yaml", "clarifications: 0", "clarifications: 1", ["case hat: expectation.clarifications 0 -> 1"]),
        ("cases.yaml", "secret-label", "new", ['case hat: labels.kind "secret-label" -> "new"']),
        ("my_agent.py", "return None", "return {}", ["agent my_agent:answer: source files"]),
        ("helper.py", "plain", "warm", ["agent my_agent:answer: source files"]),
    ],
)  # fmt: skip
def test_what_changed_is_told_for_a_person(study: Path, file: str, old: str, new: str, told: list[str]) -> None:
    assert differs(study, study.parent / file, old, new) == told


def test_a_changed_packaged_agent_is_told(study: Path, packaged_agents: Path) -> None:
    told = differs(study, packaged_agents / "quick_reader.py", "return None", "return {}")
    assert told == ["agent quick-reader: source files"]


def test_order_of_cases_and_baseline_are_part_of_it(study: Path, write: Write) -> None:
    second = CASES[CASES.index("  - id: hat") :].replace("id: hat", "id: cap")
    write("cases.yaml", CASES + second)
    before = resolve(study).manifest
    write("cases.yaml", CASES.replace("id: hat", "id: cap") + second.replace("id: cap", "id: hat"))
    assert differences(before, resolve(study).manifest) == ["cases: another order"]
    write("cases.yaml", CASES + second)
    changed(study, "baseline: control", "baseline: mine")
    assert differences(before, resolve(study).manifest) == ["conditions: another order", 'baseline "control" -> "mine"']


def test_packaged_agents_are_reused_where_they_allow_it(study: Path) -> None:
    control, mine = resolve(study).manifest.conditions
    assert (control.agent.reuse, mine.agent.reuse) == (True, False)
    changed(study, "    agent: quick-reader", "    agent: quick-reader\n    reuse: false")
    assert resolve(study).manifest.conditions[0].agent.reuse is False
    changed(study, "quick-reader\n    reuse: false", "slow-reader")
    assert resolve(study).manifest.conditions[0].agent.reuse is False
    changed(study, "slow-reader", "slow-reader\n    reuse: true")
    assert problems(study) == [
        ("matrix.yaml", 9, "conditions[1].agent: 'slow-reader' may not be reused: remove 'reuse: true'")
    ]


@pytest.mark.parametrize(
    ("agent", "more", "message"),
    [
        (
            "quick-readr",
            "",
            "no packaged agent is called 'quick-readr': did you mean 'quick-reader'? (known: crashing, ",
        ),
        ("my_agent.py", "", "'my_agent.py' is a file: write 'my_agent:FUNCTION'"),
        (
            "quick-reader",
            "",
            "'quick-reader' does not take these settings: got an unexpected keyword argument 'temperature'",
        ),
        (
            "quick-reader",
            "    sources: [x]\n",
            "'quick-reader' is a packaged agent, which has no further",
        ),
        ("'my_agent:'", "", "'my_agent:' is no module:function: write for example agent:answer"),
        ("../my_agent:answer", "", "'../my_agent:answer' is no module:function"),
        ("simulator:answer", "", "the module name 'simulator' is Cellwise's own: rename your module"),
        ("grading.x:answer", "", "the module name 'grading' is Cellwise's own: rename your module"),
        ("k8s:answer", "", "the module name 'k8s' is Cellwise's own"),
        ("charts:answer", "", "the module name 'charts' is Cellwise's own"),
        ("tests.x:answer", "", "the module name 'tests' is Cellwise's own"),
        ("email:answer", "", "the module name 'email' belongs to Python itself: rename your module"),
        ("absent:answer", "", "there is no module 'absent': neither "),
        ("my_agent.inner:answer", "", "'my_agent' is a module and no package: 'my_agent.inner' cannot be in it"),
        ("my_agent:answr", "", "'my_agent' has no function 'answr': it has answer"),
        ("my_agent:tone", "", "'my_agent:tone' is no function but of type str"),
        ("my_agent:answer", "    reuse: true\n", "only packaged deterministic agents may be reused"),
        ("my_agent:answer", "    sources: [prompts/*.txt]\n", "the source 'prompts/*.txt' is no file, folder or glob"),
        ("my_agent:answer", "    settings: {request: 1}\n", "multiple values for argument 'request'"),
    ],
)
def test_agents_that_cannot_be_run(study: Path, agent: str, more: str, message: str) -> None:
    told = with_agent(study, agent, more)
    assert [(name, line) for name, line, _ in told] == [("matrix.yaml", 6)]
    assert message in told[0][2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere_to_be_found\n", "importing 'my_agent' failed: ModuleNotFoundError: No module named"
         " 'nowhere_to_be_found' (my_agent.py:1)"),
        ("\n1 / 0\n", "importing 'my_agent' failed: ZeroDivisionError: division by zero (my_agent.py:2)"),
        ("def answer(:\n", "importing 'my_agent' failed: SyntaxError: invalid syntax (my_agent.py, line 1)"),
        ("raise SystemExit(0)\n", "importing 'my_agent' failed: SystemExit: 0 (my_agent.py:1)"),
        ("import os\nos._exit(3)\n", "importing 'my_agent' ended its process with status 3: it said nothing"),
        ("import os\nos.write(1, b'[null]')\nos._exit(0)\n", "ended its process with status 0: [null]"),
        ("def answer(request): pass\n", "'my_agent:answer' cannot be called with (request, tools, **settings): "
         "too many positional arguments (its parameters: request)"),
        ("def answer(request, tools, *, model, temperature): pass\n", "missing a required argument: 'model'"),
        ("def answer(request, tools, temperature): yield {}\n", "must return its output, not yield it"),
        ("import os\ndef answer(r, t, temperature): pass\nassert 'KEY_OF_MINE' not in os.environ\n", None),
        ("import sys\nsys.stdin.read()\nprint('noise')\ndef answer(r, t, temperature): pass\n", None),
        ("import subprocess\nsubprocess.Popen(['sleep', '60'])\ndef answer(r, t, temperature): pass\n", None),
    ],
)  # fmt: skip
def test_agents_are_imported_apart_and_with_their_own_environment(
    study: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str | None
) -> None:
    monkeypatch.setenv("KEY_OF_MINE", "secret")
    (study.parent / "my_agent.py").write_text(source)
    if message is None:
        assert resolve(study).manifest.conditions[1].agent.name == "my_agent:answer"
        return
    ((name, line, told),) = problems(study)
    assert (name, line) == ("matrix.yaml", 6)
    assert message in told


def test_named_environment_variables_reach_the_import_and_never_the_manifest(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_MINE", "the-secret-value")
    (study.parent / "my_agent.py").write_text(
        "import os\nos.environ['KEY_OF_MINE']\ndef answer(r, t, temperature): pass\n"
    )
    assert "KeyError" in problems(study)[0][2]
    changed(study, "    settings:", "    env: [KEY_OF_MINE]\n    settings:")
    assert b"the-secret-value" not in resolve(study).manifest.document()


def test_a_package_is_hashed_by_its_own_files_and_the_named_sources(study: Path, write: Write) -> None:
    write("bot/__init__.py", "")
    write("bot/main.py", "def answer(request, tools, temperature): pass\n")
    write("bot/prompt.txt", "Be kind.")
    write("prompts/extra.txt", "Be brief.")
    changed(study, "my_agent:answer", "bot.main:answer\n    sources: [prompts]")

    def source() -> str:
        return resolve(study).manifest.conditions[1].agent.source

    first = source()
    write("helper.py", "tone = 'other'\n")
    assert source() == first
    write("bot/prompt.txt", "Be kinder.")
    second = source()
    assert second != first
    write("prompts/extra.txt", "Be briefer.")
    assert source() not in (first, second)


def test_a_lone_module_is_hashed_with_the_python_files_beside_it(study: Path, write: Write) -> None:
    def source() -> str:
        return resolve(study).manifest.conditions[1].agent.source

    first = source()
    write("notes.txt", "x")
    write(".cellwise/x.py", "x")
    write("venv/pyvenv.cfg", "")
    write("venv/lib/x.py", "x")
    assert source() == first
    write("deeper/part.py", "x = 1")
    assert source() != first


def test_all_files_and_agents_are_checked_in_one_go(study: Path) -> None:
    changed(study.parent / "cases.yaml", "amount_cents: 4000", "amount_cents: true")
    changed(study, "quick-reader", "nobody")
    changed(study, "my_agent:answer", "absent:answer")
    assert [(name, line) for name, line, _ in problems(study)] == [
        ("cases.yaml", 4), ("matrix.yaml", 6), ("matrix.yaml", 9)
    ]  # fmt: skip


def test_a_manifest_that_contradicts_itself_does_not_load(study: Path) -> None:
    document = json.loads(resolve(study).manifest.document())
    for change in (
        {"baseline": "mine"},
        {"population": []},
        {"version": 2},
        {"extra": 1},
        {"repetitions": True},
        {"conditions": [document["conditions"][0]] * 2},
    ):
        with pytest.raises(ValueError, match="validation error"):
            Manifest.from_document(json.dumps({**document, **change}).encode())


def test_studies_are_found_by_name_file_and_folder(study: Path, tmp_path: Path) -> None:
    assert "order-resolution" in list_studies()
    assert find_study("order-resolution").name == "matrix.yaml"
    assert find_study(str(study)) == study
    assert find_study(str(tmp_path)) == study
    with pytest.raises(FileError, match="did you mean 'order-resolution'"):
        find_study("order-resolutoin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"the folder holds no matrix\.yaml"):
        find_study(str(tmp_path / "empty"))


DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"registry.example/team/agent@{DIGEST}"


def test_an_agent_of_an_image_is_known_by_its_digest_and_is_never_imported(study: Path) -> None:
    (study.parent / "my_agent.py").unlink()
    changed(study, "    settings:", f"    image: {IMAGE}\n    provider: openai\n    settings:")
    changed(study, "repetitions: 2", "repetitions: 2\ntrials_per_pod: 2")
    resolved = resolve(study)
    mine = resolved.manifest.conditions[1].agent
    assert (mine.name, mine.source, mine.reuse) == ("my_agent:answer", DIGEST, False)
    assert (dict(resolved.images), dict(resolved.providers)) == ({"mine": IMAGE}, {"mine": "openai"})
    assert resolved.trials_per_pod == 2
    document = resolved.manifest.document()
    for word in (b"registry.example", b"openai", b"trials_per_pod", b'"image"', b'"provider"'):
        assert word not in document
    # Where the image lies, whose model it asks and how trials are packed into pods changes nothing about the results.
    changed(study, "registry.example/team/agent", "elsewhere.example/agent")
    changed(study, "provider: openai", "provider: another")
    changed(study, "trials_per_pod: 2", "trials_per_pod: 1")
    assert resolve(study).manifest.document() == document
    changed(study, DIGEST, "sha256:" + "f" * 64)
    assert differences(resolved.manifest, resolve(study).manifest) == ["agent my_agent:answer: source files"]


@pytest.mark.parametrize(
    ("agent", "more", "message"),
    [
        ("my_agent", "", "conditions[0].image: 'my_agent' is a packaged agent"),
        ("'my_agent:'", "", "conditions[0].agent: 'my_agent:' is no module:function"),
        ("simulator.x:answer", "", "the module name 'simulator' is Cellwise's own"),
        ("my_agent:answer", "    reuse: true\n", "only packaged deterministic agents may be reused"),
        (
            "my_agent:answer",
            "    sources: [x]\n",
            "the image is all that the agent is made of: remove 'sources'",
        ),
    ],
)
def test_images_of_agents_that_cannot_be_run(study: Path, agent: str, more: str, message: str) -> None:
    changed(study, "    agent: my_agent:answer\n", f"    agent: {agent}\n    image: {IMAGE}\n{more}")
    ((name, line, told),) = problems(study)
    assert (name, line) == ("matrix.yaml", 7 if "image:" in message else 6)
    assert message in told


def test_isolation_by_containers_is_registered_where_every_agent_has_an_image(study: Path) -> None:
    changed(study, "repetitions: 2", "repetitions: 2\nisolation: container")
    changed(study, "    settings:", f"    image: {IMAGE}\n    settings:")
    assert problems(study) == [
        ("matrix.yaml", 9, "conditions[1]: 'control' has no image, which isolation: container needs: write image")
    ]
    changed(study, "agent: quick-reader", f"agent: other:answer\n    image: {IMAGE}")
    assert resolve(study).manifest.isolation == "container"
