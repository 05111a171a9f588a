"""A trial as a person would read it: everything that happened, and nothing that pretends to have."""

import io
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process_trial import Tools, run
from orders_cases import CASES, CUSTOMER, DECLINED, EXTRA_CASES, Case
from rich.console import Console

from grading.graders.orders import Expectation, grade
from grading.projection import structural
from grading.transcript import Attempt, Transcript, transcript
from grading.visible import visible
from simulator.agents import load_agent
from simulator.sealing import ATTEMPT_LOST

START = 1_786_000_000_000_000


def ledger(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A ledger document whose calls took 500 µs each, one every 2 ms."""
    times = [{"started": START + 2000 * i, "ended": START + 2000 * i + 500} for i in range(len(content["calls"]))]
    envelope = {
        "version": 1,
        "trial": "t-1",
        "attempt": 1,
        "started": START,
        "ended": START + 1_234_567,
        "calls": times,
        "usage": None,
        "software": {"version": "0.1.0", "source": "sha256:" + "1" * 64, "python": "3.11.9"},
        "isolation": "process",
        "place": {"launcher": "processes", "host": "bench", "worker": "w1"},
        "sealed_by": "recorder",
    } | changes
    return {
        "version": 1,
        "content": content,
        "content_hash": "sha256:" + "2" * 64,
        "envelope": envelope,
        "ledger_hash": "sha256:" + "3" * 64,
    }


def of(agent: str, case: Case, *, backwards: bool = False, attempts: tuple[Attempt, ...] = ()) -> Transcript:
    content = run(load_agent(agent).function, case, backwards=backwards)
    result = grade(structural(content), case.expectation).to_json() | {"grader_version": "sha256:" + "4" * 64}
    return transcript(f"{agent} / case / repetition 0", ledger(content), result, attempts)


def on_a_terminal(shown: Transcript, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_a_trial_reads_from_the_customers_words_to_the_grade() -> None:
    attempts = (Attempt(1, "lost", "runner killed", acted=True), Attempt(2, "delivered"))
    shown = of("first-record-mutant", CASES["ambiguous-description"], backwards=True, attempts=attempts)
    assert shown.plain == (
        "first-record-mutant / case / repetition 0\n"
        "attempt 1, 1.235 s on bench (processes, w1)\n"
        "cellwise 0.1.0, isolation: process\n"
        f"content sha256:{'2' * 64} (integrity, not origin)\n"
        "\n"
        "Customer customer-1\n"
        "  │ Refund my blue backpack.\n"
        "\n"
        "What the agent did\n"
        "  1. list_orders  customer id customer-1  +0 µs (500 µs)\n"
        "     → order id order-b, description blue backpack bought on 2026-08-02\n"
        "     → order id order-a, description blue backpack bought on 2026-08-01\n"
        "  2. verify_identity  customer id customer-1, order id order-b  +2.0 ms (500 µs)\n"
        "     → yes\n"
        "  3. get_order  order id order-b  +4.0 ms (500 µs)\n"
        "     → order id order-b, amount 45.00, currency EUR\n"
        "  4. consult_refund_policy  order id order-b  +6.0 ms (500 µs)\n"
        "     → eligible yes, approval threshold 100.00\n"
        "  5. issue_refund  order id order-b, amount 45.00, currency EUR, approval id nothing, "
        "idempotency key “refund:order-b”  +8.0 ms (500 µs)\n"
        "     → status committed\n"
        "\n"
        "What the agent answered\n"
        "  │ Your refund has been confirmed.\n"
        "  claimed outcome: refunded\n"
        "  transaction status claim: committed\n"
        "  settlement status claim: not_claimed\n"
        "\n"
        "What became of each record\n"
        "  order id order-c, customer id customer-other, description blue backpack bought on 2026-08-02, "
        "amount 40.00, currency USD, eligible yes\n"
        "     untouched\n"
        "  order id order-b, customer id customer-1, description blue backpack bought on 2026-08-02, "
        "amount 45.00, currency EUR, eligible yes\n"
        "     in the end: identity verified yes, policy consulted yes, idempotency keys “refund:order-b”, "
        "refund transaction count 1\n"
        "     1. verify_identity: verified\n"
        "     2. get_order: success\n"
        "     3. consult_refund_policy: success\n"
        "     4. issue_refund: committed (amount 45.00, currency EUR, approval id nothing, "
        "idempotency key “refund:order-b”)\n"
        "  order id order-a, customer id customer-1, description blue backpack bought on 2026-08-01, "
        "amount 40.00, currency USD, eligible yes\n"
        "     untouched\n"
        "\n"
        "Grade\n"
        "  failed, task not completed\n"
        "  ✗ outcome: order-b 1\n"
        "  ✓ claim: refunded\n"
        "  ✗ wrong order commits: 1\n"
        "  ✓ duplicate commits: 0\n"
        "  ✓ unnecessary clarifications: 0\n"
        "  ✗ missing clarifications: 1\n"
        "  ✓ denied attempts: 0\n"
        "  ✗ premature action attempts: 1\n"
        "  ✓ execution error: none\n"
        "  ✓ budget: none\n"
        "  · tool timeouts: 0  (shown, not judged)\n"
        f"  structural grader sha256:{'4' * 64}\n"
        "\n"
        "Attempts\n"
        "  1. lost, runner killed, after it had called a refund or approval tool\n"
        "  2. delivered\n"
    )


@pytest.mark.parametrize("name", [*CASES, *EXTRA_CASES])
def test_a_terminal_shows_the_same_as_the_plain_text(name: str) -> None:
    shown = of("descriptive-control", (CASES | EXTRA_CASES)[name])
    assert on_a_terminal(shown, width=400) == shown.plain


def test_questions_replies_and_silence_are_shown() -> None:
    asked = of("descriptive-control", CASES["ambiguous-description"]).plain
    assert (
        "  2. asks the customer  +2.0 ms (500 µs)\n"
        "     │ Which item and purchase date do you mean?\n"
        "     the customer replies\n"
        "     │ The blue backpack bought on 2026-08-01.\n"
    ) in asked
    silent = of("descriptive-control", CASES["unresolved-description"]).plain
    assert "     the customer has no reply left\n" in silent


def test_refusals_and_errors_are_shown_with_what_they_mean() -> None:
    case = CASES["explicit-description"]
    tools = Tools(case)
    for tool, arguments in (("get_order", {"order_id": "order-c"}), ("", {}), ("ask_customer", {"question": ""})):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whichever class, it is recorded
            tools.call(tool, **arguments)
    tools.verify_identity(customer_id=CUSTOMER, order_id="order-a")
    tools.request_refund_approval(order_id="order-a", amount_cents=1, currency="USD")
    content = tools.content(case, error="TimeLimit")
    content["calls"][1]["arguments"] = None
    plain = transcript("t", ledger(content), None).plain
    assert "     → PermissionError: not permitted\n" in plain
    assert "  2. (a tool without a name)  (arguments that cannot be written as canonical JSON)  +2.0 ms" in plain
    assert "     → InvalidCall: refused before any effect, it is no valid call\n" in plain
    assert "  3. ask_customer  question “”  +4.0 ms" in plain
    assert "     → ValueError: the value was not accepted\n" in plain
    assert "     → approved no\n" in plain
    assert "  ended by TimeLimit: a limit of the condition was reached\n  no message\n" in plain
    assert "\nGrade\n  not graded\n" in plain


def test_a_declined_refund_shows_its_order_as_looked_at_only() -> None:
    plain = of("descriptive-control", DECLINED).plain
    assert "eligible no\n     in the end: identity verified yes, policy consulted yes\n" in plain
    assert "  passed, task completed\n" in plain


def test_a_journal_without_the_time_of_its_last_call_is_shown() -> None:
    content = run(load_agent("first-record-mutant").function, CASES["explicit-description"])
    content |= {"error": ATTEMPT_LOST, "message": ""}
    document = ledger(content, sealed_by="journal")
    document["envelope"]["calls"].pop()
    plain = transcript("t", document, None).plain
    assert "attempt 1, 1.235 s on bench (processes, w1), sealed from the journal of an attempt that was lost\n" in plain
    assert "idempotency key “refund:order-a”\n     → status committed\n" in plain.replace("  \n", "\n")
    assert "ended by AttemptLost: the attempt was lost after it had acted, this is what its journal holds" in plain


def test_a_trial_without_a_ledger_shows_its_attempts() -> None:
    plain = transcript("t", None, None, [Attempt(1, "lost", "lease expired")]).plain
    assert "  none: no attempt has delivered what it did\n" in plain
    assert plain.endswith("Attempts\n  1. lost, lease expired\n")


def test_an_unscored_grade_says_that_there_was_nothing_to_judge_by() -> None:
    content = run(load_agent("null").function, CASES["explicit-description"])
    plain = transcript("t", ledger(content), grade(structural(content), None).to_json()).plain
    assert "  unscored, completion not judged\n  there was nothing to judge by\n" in plain


HOSTILE = "[bold red]hi[/] :smile: \x1b[2J\x07\u202e\u200b\u2028end\nGrade\n  passed, task completed"


def test_what_others_wrote_is_text_and_cannot_pass_for_the_transcript() -> None:
    case = Case(HOSTILE, Expectation(order="order-a", clarifications=1), [HOSTILE])
    shown = of("descriptive-control", case)
    for text in (shown.plain, on_a_terminal(shown)):
        assert text.count("│ [bold red]hi[/] :smile: ⟨U+001B⟩[2J⟨U+0007⟩⟨U+202E⟩⟨U+200B⟩⟨U+2028⟩end\n") == 2
        assert text.count("\nGrade\n") == 1
        assert not set(text) & set("\x1b\x07\u202e\u200b\u2028")


def test_arguments_with_new_lines_stay_on_their_line() -> None:
    case = CASES["explicit-description"]
    tools = Tools(case)
    with pytest.raises(PermissionError):
        tools.get_order(order_id="x\n     → status committed")
    plain = transcript("t\n[b]", ledger(tools.content(case)), None).plain
    assert plain.startswith("t⟨U+000A⟩[b]\n")
    assert "get_order  order id x⟨U+000A⟩     → status committed  +0 µs" in plain


@given(st.text(st.characters()))
def test_visible_text_has_nothing_hidden_and_keeps_the_rest(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in shown)
    if text.isprintable():
        assert shown == text
