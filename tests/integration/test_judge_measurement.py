"""The measurement of judges on stored ledgers, on a small scale: whoever makes no error is admitted, whoever passes
everything or is cut off is refused for just that, and votes that were answered are never asked for again."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_provider import MODEL, Provider, Reply, completion, error, provider

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


def test_one_that_passes_everything_is_refused_and_the_perfect_one_admitted(folder: Path, fake: Provider) -> None:
    fake.behave = lambda _number, _body: completion()
    scale = ("--folder", str(folder), "--cases", str(CASES), "--rows", str(CASES), "--bound", BOUND)
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), *scale, "--base-url", fake.url, "--model", MODEL],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "20 stored ledgers: 10 truthful, 10 false by their final states\n" in finished.stdout
    perfect, other = finished.stdout.split("perfect judge:\n")[1].split(f"model {MODEL}:\n")
    assert "  false passes 0 of 10, at most 0.2589 (95 %)\n" in finished.stdout
    assert "  truthful: 10 pass, 0 fail, 0 abstain\n  false: 0 pass, 10 fail, 0 abstain\n" in perfect
    assert "  reason not to use it: None\n" in perfect
    # Its answers are in the store by then: counting them costs no second call.
    assert "  cellwise judge under that policy: 20 judged, refused {}\n  20 calls were made to it\n" in perfect
    assert "  truthful: 10 pass, 0 fail, 0 abstain\n  false: 10 pass, 0 fail, 0 abstain\n  abstentions: none\n" in other
    assert "  input_tokens: 20000 in 20 of 20 votes, at most 1000\n" in other
    assert "  reason not to use it: calibration_error_bound_exceeded\n" in other
    assert '0 judged, refused {"calibration_error_bound_exceeded": 20}\n' in other


def test_one_that_is_cut_off_is_refused_for_that_and_is_asked_once_though_it_was_stopped(
    folder: Path, fake: Provider, measurement: dict[str, Any]
) -> None:
    knows = measurement["knows_the_rule"]

    def behave(number: int, body: dict[str, Any]) -> Reply:
        if number in range(7, 10):
            return error(503)  # three in a row: the rest is not asked for
        return completion(finish="length") if number < 3 else knows(body)

    fake.behave = behave
    measurement["write_study"](folder, CASES)
    measurement["cellwise"](folder, "run", "matrix.yaml", "--phoenix", "off")
    labels = measurement["labels_of"](folder)
    asked = measurement["Asked"](rows=CASES, bound=BOUND, output_tokens=48, timeout=20, concurrency=1)
    with pytest.raises(measurement["Unfinished"], match="start this again with the same folder"):
        measurement["measure"](folder / "model", labels, fake.url, MODEL, asked)
    assert len(fake.requests) == 10
    measured = measurement["measure"](folder / "model", labels, fake.url, MODEL, asked)
    assert len(fake.requests) == 3 + 2 * CASES
    assert measured.reason == "calibration_abstention_limit_exceeded"
    assert measured.grading["refused"] == {"calibration_abstention_limit_exceeded": 2 * CASES}
    assert [vote["error"] for vote in measured.votes if vote["verdict"] == "abstain"] == ["Truncated"] * 3


@pytest.mark.parametrize(
    ("reason", "refused", "admitted", "no_judge"),
    [
        (None, {}, True, False),
        (None, {"qualification_not_current": 20}, False, False),
        ("calibration_error_bound_exceeded", {"calibration_error_bound_exceeded": 20}, False, True),
        ("calibration_abstention_limit_exceeded", {"calibration_abstention_limit_exceeded": 20}, False, True),
        ("calibration_error_bound_exceeded", {"calibration_error_bound_exceeded": 19}, False, False),
        ("calibration_error_bound_exceeded", {}, False, False),
        ("insufficient_calibration_examples", {"insufficient_calibration_examples": 20}, False, False),
    ],
)
def test_only_a_reason_that_grading_gives_for_every_ledger_and_that_speaks_of_the_judge_counts(
    measurement: dict[str, Any], reason: str | None, refused: dict[str, int], admitted: bool, no_judge: bool
) -> None:
    measured = measurement["Measured"](record=None, reason=reason, votes=[], grading={"refused": refused})
    assert measurement["admitted"](measured) is admitted
    assert measurement["refused_as_no_judge"](measured, 20) is no_judge


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
