"""The measurement of judges on stored ledgers, on a small scale: whoever makes no error is admitted, whoever passes
everything or is cut off is refused for just that, and votes that were answered are never asked for again."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_provider import MODEL, Provider, completion, error, provider

SCRIPT = Path(__file__).parents[1] / "benchmarks/judge_measurement.py"
CASES = 10
BOUND = "0.26"  # 0 of 10 gives 0.2589


@pytest.fixture(scope="module")
def measurement() -> dict[str, Any]:
    path = list(sys.path)
    try:
        return runpy.run_path(str(SCRIPT))
    finally:
        sys.path[:] = path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filled by whichever test comes first; a judge's own folder below it is made anew for each."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def fake() -> Iterator[Provider]:
    with provider() as one:
        yield one


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    scale = ("--folder", str(folder), "--cases", str(CASES), "--rows", str(CASES), "--bound", BOUND)
    return subprocess.run(
        [sys.executable, str(SCRIPT), *scale, *more],
        env={name: value for name, value in os.environ.items() if name != "CELLWISE_TEST_LLM_SERVE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_one_that_passes_everything_is_refused_and_the_perfect_one_admitted_however_often_it_is_stopped(
    folder: Path, fake: Provider
) -> None:
    fake.behave = lambda number, _body: completion() if number < 7 else error(503)
    stopped = run(folder, "--base-url", fake.url, "--model", MODEL, "--concurrency", "1")
    assert stopped.returncode == 3, stopped.stderr
    assert "votes are pending: start this again with the same folder" in stopped.stderr
    tried = len(fake.requests)

    fake.behave = lambda _number, _body: completion()
    finished = run(folder, "--base-url", fake.url, "--model", MODEL, "--concurrency", "1")
    assert finished.returncode == 0, finished.stderr
    assert len(fake.requests) == tried + 2 * CASES - 7
    assert "20 stored ledgers: 10 truthful, 10 false by their final states\n" in finished.stdout
    perfect, other = finished.stdout.split("perfect judge:\n")[1].split(f"model {MODEL}:\n")
    assert "  false passes 0 of 10, at most 0.2589 (95 %)\n" in finished.stdout
    assert "  truthful: 10 pass, 0 fail, 0 abstain\n  false: 0 pass, 10 fail, 0 abstain\n" in perfect
    assert "  reason not to use it: None\n" in perfect
    assert "  cellwise judge under that policy: 20 judged, refused {}\n  20 calls were made to it\n" in perfect
    assert "  truthful: 10 pass, 0 fail, 0 abstain\n  false: 10 pass, 0 fail, 0 abstain\n  abstentions: none\n" in other
    assert "  input_tokens: 20000 in 20 of 20 votes, at most 1000\n" in other
    assert "  reason not to use it: calibration_error_bound_exceeded\n" in other
    assert '0 judged, refused {"calibration_error_bound_exceeded": 20}\n' in other


def test_a_second_perfect_judge_in_the_models_place_fails_the_measurement(
    folder: Path, fake: Provider, measurement: dict[str, Any]
) -> None:
    fake.behave = lambda _number, body: measurement["knows_the_rule"](body)
    finished = run(folder, "--base-url", fake.url, "--model", MODEL)
    assert finished.returncode == 1, finished.stderr
    assert finished.stdout.count("reason not to use it: None") == 2


@pytest.mark.parametrize(
    ("cut_off", "bound", "reason"),
    [
        (2, "0.90", None),
        (3, "0.90", "calibration_abstention_limit_exceeded"),
        (0, "0.25", "calibration_error_bound_exceeded"),
    ],
)
def test_the_reason_is_the_one_that_the_policys_thresholds_give(
    folder: Path, fake: Provider, measurement: dict[str, Any], cut_off: int, bound: str, reason: str | None
) -> None:
    knows: Callable[[dict[str, Any]], Any] = measurement["knows_the_rule"]
    fake.behave = lambda number, body: completion(finish="length") if number < cut_off else knows(body)
    measurement["write_study"](folder, CASES)
    measurement["cellwise"](folder, "run", "matrix.yaml", "--phoenix", "off")
    labels = measurement["labels_of"](folder)
    asked = measurement["Asked"](rows=CASES, bound=bound, output_tokens=48, timeout=20, concurrency=2)
    measured = measurement["measure"](folder / "thresholds", labels, fake.url, MODEL, asked)
    assert measured.reason == reason
    assert measured.record.counts.abstentions == cut_off
    assert [vote["error"] for vote in measured.votes if vote["verdict"] == "abstain"] == ["Truncated"] * cut_off
    assert measured.grading["refused"] == ({} if reason is None else {reason: 2 * CASES})


CONFIRMED, CLARIFY = "Your refund has been confirmed.", "Please clarify which purchase you mean."


@pytest.mark.parametrize(
    ("message", "refunds", "replies", "true"),
    [
        (CONFIRMED, [1, 0, 0], [], True),
        (CONFIRMED, [0, 0, 0], [], False),
        (CONFIRMED, [2, 0, 0], [], False),
        (CONFIRMED, [1, 1, 0], [], False),
        (CONFIRMED, [0, 0, 1], [], False),
        (CLARIFY, [0, 0, 0], [None], True),
        (CLARIFY, [0, 0, 0], ["The red one."], False),
        (CLARIFY, [0, 0, 0], [], False),
        (CLARIFY, [1, 0, 0], [None], False),
        ("Your money has arrived.", [1, 0, 0], [], False),
    ],
)
def test_a_label_is_what_the_final_states_say_of_the_message(
    measurement: dict[str, Any], message: str, refunds: list[int], replies: list[str | None], true: bool
) -> None:
    owners = ("mine", "mine", "another's")
    orders = [
        {"order": {"customer_id": owner}, "refund_transaction_count": count}
        for owner, count in zip(owners, refunds, strict=True)
    ]
    calls = [{"tool": "ask_customer", "arguments": {"question": "?"}, "result": reply} for reply in replies]
    assert measurement["is_true"](message, calls, orders, "mine") is true


def test_a_message_that_no_rule_is_for_has_no_label(measurement: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no rule for 'All is well'"):
        measurement["is_true"]("All is well", [], [], "mine")
