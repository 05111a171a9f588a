"""Reviewers see the evidence alone, and their answers become rows only where they fit it and each other."""

import json
from pathlib import Path
from typing import Any

import pytest
from calibration_rows import CONFIGURATION, SCOPE

from grading.calibration.importing import Imported, ReviewsRefused, make_rows
from grading.calibration.items import (
    KeyItem,
    ReviewItem,
    Source,
    for_reviewer,
    items_of,
    read_key,
    read_review,
    write_key,
    write_review,
)
from grading.calibration.rows import Adjudication, Judgment
from grading.file_error import FileError
from simulator.canonical import canonical_hash


def source(number: int, **changes: Any) -> Source:
    fields: dict[str, Any] = {
        "trial": f"secret-condition/secret-case-{number}/0",
        "case": f"secret-case-{number}",
        "customer": f"customer-{number}",
        "slices": {"language": "de", "secret-slice": str(number)},
        "evidence": {"output": {"message": f"message {number}"}},
    }
    return Source(**(fields | changes))


def key_of(count: int = 3, **changes: Any) -> list[KeyItem]:
    options: dict[str, Any] = {"scope": SCOPE, "grouping": "customer", "synthetic": False}
    return items_of([source(number) for number in range(count)], **(options | changes))


def answered(key: list[KeyItem], reviewer: str, *labels: str | None, note: str | None = None) -> list[ReviewItem]:
    """The reviewer's file with the key's items labelled in the key's order."""
    given = dict(zip([item.id for item in key], labels, strict=True))
    return [
        ReviewItem.model_validate(item.model_dump() | {"label": given[item.id], "note": note})
        for item in for_reviewer(key, reviewer)
    ]


def test_a_review_item_tells_nothing_but_the_evidence(tmp_path: Path) -> None:
    key = key_of()
    write_review(tmp_path / "review.jsonl", for_reviewer(key, "alice"))
    written = (tmp_path / "review.jsonl").read_text()
    assert "secret" not in written
    assert "customer-" not in written
    assert set(json.loads(written.splitlines()[0])) == {
        "version", "id", "reviewer", "scope", "evidence", "evidence_hash", "label", "note",
    }  # fmt: skip
    assert read_review(tmp_path / "review.jsonl") == for_reviewer(key, "alice")


def test_the_key_keeps_where_it_comes_from(tmp_path: Path) -> None:
    write_key(tmp_path / "key.jsonl", key_of())
    (item,) = [item for item in read_key(tmp_path / "key.jsonl") if item.group == "customer-1"]
    assert item.trials == ["secret-condition/secret-case-1/0"]
    assert item.id == "item-" + canonical_hash({"output": {"message": "message 1"}})[7:23]


def test_each_reviewer_has_an_order_of_their_own() -> None:
    key = key_of(30)
    orders = {name: [item.id for item in for_reviewer(key, name)] for name in ("alice", "bob")}
    assert orders["alice"] != orders["bob"]
    assert sorted(orders["alice"]) == sorted(orders["bob"]) == [item.id for item in key]
    assert orders["alice"] == [item.id for item in for_reviewer(key[::-1], "alice")]


def test_the_same_evidence_is_one_item_and_joins_its_groups() -> None:
    same = {"output": {"message": "the same"}}
    sources = [source(1, evidence=same), source(2, evidence=same), source(2, trial="x/y/1"), source(3)]
    items = items_of(sources, scope=SCOPE, grouping="case", synthetic=False)
    assert len(items) == 3
    assert sorted((item.group, len(item.trials)) for item in items) == [
        ("secret-case-1", 1),
        ("secret-case-1", 2),
        ("secret-case-3", 1),
    ]
    (joined,) = [item for item in items if item.evidence == same]
    assert joined.slices == {"language": "de"}


def test_one_item_of_each_group_is_taken() -> None:
    sources = [source(number, customer=f"customer-{number % 2}") for number in range(8)]
    options: dict[str, Any] = {"scope": SCOPE, "grouping": "customer", "synthetic": False}
    assert len(items_of(sources, **options)) == 8
    taken = items_of(sources, **options, per_group=1)
    assert sorted(item.group for item in taken) == ["customer-0", "customer-1"]
    assert items_of(sources[::-1], **options, per_group=1) == taken


def test_a_changed_evidence_is_refused(tmp_path: Path) -> None:
    write_review(tmp_path / "review.jsonl", for_reviewer(key_of(1), "alice"))
    text = (tmp_path / "review.jsonl").read_text()
    (tmp_path / "changed.jsonl").write_text(text.replace("message 0", "message 9"))
    with pytest.raises(FileError, match=r"changed.jsonl:1: evidence_hash .* only label and note are to be filled in"):
        read_review(tmp_path / "changed.jsonl")


def imported(key: list[KeyItem], first: list[ReviewItem], second: list[ReviewItem], **changes: Any) -> Imported:
    judgments = [
        Judgment(evidence_hash=item.evidence_hash, configuration_hash=CONFIGURATION, verdict="pass") for item in key
    ]
    return make_rows(key, first, second, **({"judgments": judgments} | changes))


def test_two_labels_and_a_verdict_make_a_row() -> None:
    key = key_of()
    made = imported(
        key, answered(key, "bob", "truthful", "false", None), answered(key, "alice", "truthful", "truthful", "false")
    )
    (row,) = made.rows
    assert (row.id, row.label, row.group, row.split) == (key[0].id, "truthful", key[0].group, "calibration")
    assert [review.reviewer for review in row.reviews] == ["alice", "bob"]
    assert made.to_adjudicate == (key[1],)
    assert made.unlabelled == {key[2].id: ("bob",)}
    assert made.not_judged == 0


def test_a_third_one_decides_with_a_reason() -> None:
    key = key_of(1)
    first, second = answered(key, "alice", "truthful"), answered(key, "bob", "false")
    made = imported(key, first, second, adjudications=answered(key, "carol", "false", note="no settlement"))
    assert made.rows[0].adjudication == Adjudication(reviewer="carol", label="false", reason="no settlement")
    with pytest.raises(ReviewsRefused, match="has no reason: write it as the note"):
        imported(key, first, second, adjudications=answered(key, "carol", "false"))
    with pytest.raises(ReviewsRefused, match="must be by different people"):
        imported(key, first, second, adjudications=answered(key, "bob", "false", note="I stay with it"))


def test_a_row_may_wait_for_its_judgment() -> None:
    key = key_of(1)
    made = imported(key, answered(key, "alice", "false"), answered(key, "bob", "false"), judgments=[])
    assert (made.rows[0].judgment, made.not_judged) == (None, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda key: {"first": answered(key_of(4), "alice", *["false"] * 4)}, "which is no item of the key"),
        (lambda key: {"first": [*answered(key, "alice", *["false"] * 3)] * 2}, "twice: keep one"),
        (lambda key: {"second": answered(key, "alice", *["false"] * 3)}, "must be by different people"),
        (
            lambda key: {"first": answered(key, "alice", *["false"] * 3)[:2] + answered(key, "carol", *["false"] * 3)},
            "is by several people",
        ),
        (
            lambda key: {
                "judgments": [
                    Judgment(evidence_hash=key[0].evidence_hash, configuration_hash=CONFIGURATION, verdict=verdict)
                    for verdict in ("pass", "fail")
                ]
            },
            "has two different judgments",
        ),
    ],
)
def test_answers_that_do_not_fit_make_no_row(change: Any, told: str) -> None:
    key = key_of()
    given = {"first": answered(key, "alice", *["false"] * 3), "second": answered(key, "bob", *["false"] * 3)}
    with pytest.raises(ReviewsRefused, match=told):
        imported(key, **(given | change(key)))
