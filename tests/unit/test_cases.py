"""Cases load as written, and whatever cannot be graded is refused with the line it is on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grading.cases import Case, load_cases
from grading.file_error import FileError

Write = Callable[[str, str], Path]

RECORDS = """\
  - {order_id: order-a, customer_id: customer-1, description: a hat, amount_cents: 4000, currency: USD, eligible: true}
  - {order_id: order-b, customer_id: customer-1, description: coat, amount_cents: 4500, currency: EUR, eligible: false}
  - {order_id: order-c, customer_id: customer-2, description: a hat, amount_cents: 4000, currency: USD, eligible: true}
"""
SHARED = f"version: 1\nworld: orders\nrecords:\n{RECORDS}"
CASE = """\
  - id: hat
    customer_id: customer-1
    utterance: Refund the hat.
    expectation: {order: order-a, clarifications: 0}
"""
FILE = f"{SHARED}cases:\n{CASE}"


def problems(*paths: Path) -> list[tuple[str, int | None, str]]:
    with pytest.raises(FileError) as caught:
        load_cases(paths)
    return [(Path(each.path).name, each.line, each.message) for each in caught.value.problems]


def test_a_case_is_resolved_with_all_its_defaults(write: Write) -> None:
    world, (case,) = load_cases([write("cases.yaml", FILE)])
    assert world == "orders"
    assert case == Case(
        id="hat",
        customer_id="customer-1",
        utterance="Refund the hat.",
        records=[
            {"order_id": "order-a", "customer_id": "customer-1", "description": "a hat", "amount_cents": 4000,
             "currency": "USD", "eligible": True},
            {"order_id": "order-b", "customer_id": "customer-1", "description": "coat", "amount_cents": 4500,
             "currency": "EUR", "eligible": False},
            {"order_id": "order-c", "customer_id": "customer-2", "description": "a hat", "amount_cents": 4000,
             "currency": "USD", "eligible": True},
        ],
        replies=[],
        world_settings={"timeout_after_commit": False},
        expectation={"order": "order-a", "clarifications": 0, "declined": False},
        labels={},
    )  # fmt: skip


def test_own_records_replies_settings_and_labels(write: Write) -> None:
    own = RECORDS.replace("order-a", "0510210600").replace("  -", "      -")
    content = f"""{FILE}  - id: own
    customer_id: customer-1
    utterance: no
    records:
{own}    replies: [yes, "", 2026-08-01]
    world_settings: {{timeout_after_commit: true}}
    expectation: {{order: 0510210600, clarifications: 1}}
    labels: {{age: 30, returning: no}}
"""
    _, (_, case) = load_cases([write("cases.yaml", content)])
    assert case.utterance == "no"
    assert case.records[0]["order_id"] == "0510210600"
    assert case.replies == ["yes", "", "2026-08-01"]
    assert case.world_settings == {"timeout_after_commit": True}
    assert case.expectation == {"order": "0510210600", "clarifications": 1, "declined": False}
    assert case.labels == {"age": "30", "returning": "no"}


def test_ids_of_200_characters_with_markup_survive(write: Write) -> None:
    name = '<b>"it\'s"</b> & über 😀 '.ljust(199, "x") + "!"
    assert len(name) == 200
    quoted = name.replace("'", "''")
    _, (case,) = load_cases([write("cases.yaml", FILE.replace("id: hat", f"id: '{quoted}'"))])
    assert case.id == name


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (f"'{'x' * 201}'", "cases[0].id: must be at most 200 characters long, has 201"),
        ("''", "cases[0].id: must not be blank"),
        ("'  '", "cases[0].id: must not be blank"),
        (r'"a\tb"', "cases[0].id: must not hold control characters such as a tab or a line break"),
        (r'"a\x9fb"', "cases[0].id: must not hold control characters such as a tab or a line break"),
    ],
)
def test_other_ids_are_refused(write: Write, written: str, message: str) -> None:
    assert problems(write("cases.yaml", FILE.replace("id: hat", f"id: {written}"))) == [("cases.yaml", 8, message)]


def test_a_case_owned_by_nobody(write: Write) -> None:
    path = write("cases.yaml", FILE.replace("    customer_id: customer-1", "    customer_id: nobody"))
    told = problems(path)
    assert told[0][:2] == ("cases.yaml", 9)
    assert "cases[0].customer_id: 'nobody' owns none of the orders" in told[0][2]
    # The expected order is someone else's then, which is told too.
    assert told[1][1] == 11


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("amount_cents: 4000", "amount_cents: true", 4, "records[0].amount_cents: must be an integer, not 'true'"),
        ("amount_cents: 4000", "amount_cents: 4000.0", 4, "records[0].amount_cents: must be an integer, not '4000.0'"),
        ("amount_cents: 4000", "amount_cents: -1", 4, "records[0].amount_cents: must be at least 0"),
        ("eligible: false", "eligible: no", 5, "records[1].eligible: must be true or false, not 'no': write false"),
        ("currency: EUR", "currency: YEN", 5, "records[1].currency: 'YEN' is not possible here:"),
        ("description: a hat", "description: ' '", 4, "records[0].description: must not be blank"),
        ("order_id: order-b", "order_id: order-a", 5, "records[1].order_id: 'order-a' is there twice"),
        ("order_id: order-b", r'order_id: "order\tb"', 5, "records[1].order_id: must not hold control characters"),
        ("utterance: Refund the hat.", "utterance: ' '", 10, "cases[0].utterance: must not be blank"),
        ("    utterance: Refund the hat.\n", "", 8, "cases[0]: the field 'utterance' is missing"),
        ("order: order-a", "order: order-x", 11, "cases[0].expectation.order: 'order-x' is none of the orders"),
        ("order: order-a", "order: order-c", 11, "cases[0].expectation.order: 'order-c' belongs to 'customer-2'"),
        ("clarifications: 0", "clarifications: -1", 11, "cases[0].expectation.clarifications: must be at least 0"),
        ("clarifications: 0", "clarifications: 0, declined: true", 11, "cases[0].expectation.declined: 'order-a' is"),
        ("clarifications: 0", "clarification: 0", 11, "unknown field 'clarification': did you mean 'clarifications'?"),
        ("order: order-a, ", "", 11, "cases[0].expectation: the field 'order' is missing"),
        ("world: orders", "world: order", 2, "no world is called 'order': did you mean 'orders'?"),
        ("world: orders\n", "", 1, "the field 'world' is missing: name one of orders"),
        ("version: 1", "version: 2", 1, "version: must be 1, not '2'"),
        (f"cases:\n{CASE}", "cases: []\n", 7, "cases: needs at least 1, has 0"),
    ],
)
def test_bad_cases_are_told_with_their_line(write: Write, old: str, new: str, line: int, message: str) -> None:
    assert old in FILE
    told = problems(write("cases.yaml", FILE.replace(old, new, 1)))
    assert [each for each in told if each[1] == line and message in each[2]], told


def test_orders_need_three_records_to_confuse(write: Write) -> None:
    shorter = FILE.replace(RECORDS.splitlines()[1] + "\n", "")
    told = problems(write("cases.yaml", shorter))
    assert [(line, "at least 3 orders" in message) for _, line, message in told] == [(4, True)]
    without = FILE.replace(f"records:\n{RECORDS}", "")
    assert any("at least 3 orders" in message for *_, message in problems(write("cases.yaml", without)))


def test_case_ids_are_unique_across_files_and_files_share_one_world(write: Write) -> None:
    first, second = write("a.yaml", FILE), write("b.yaml", FILE)
    assert problems(first, second) == [
        ("b.yaml", 8, f"cases[0].id: 'hat' is used already at {first}:8: rename one")
    ]  # fmt: skip


def test_all_files_are_checked_in_one_go(write: Write) -> None:
    told = problems(write("a.yaml", "nothing"), write("b.yaml", FILE.replace("eligible: true", "eligible: 1", 1)))
    assert [name for name, *_ in told] == ["a.yaml", "b.yaml"]
