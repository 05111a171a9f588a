"""From what reviewers answered to calibration rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grading.calibration.items import KeyItem, ReviewItem
from grading.calibration.rows import Adjudication, CalibrationRow, Judgment, Review


class ReviewsRefused(ValueError):  # noqa: N818 - reads as what happened
    """The answers do not fit the key or each other; no row was made. ``problems`` says each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(["no row is made of these reviews:", *(f"  {each}" for each in problems)]))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Imported:
    """The rows that could be made, and what the others wait for."""

    rows: tuple[CalibrationRow, ...]
    unlabelled: Mapping[str, tuple[str, ...]]
    """Item id to the reviewers who have not labelled it."""
    to_adjudicate: tuple[KeyItem, ...]
    """Items on which the two reviewers disagree and nobody has decided yet."""
    not_judged: int
    """Rows without a judgment: no record is compiled from those."""


def make_rows(
    key: Iterable[KeyItem],
    first: Iterable[ReviewItem],
    second: Iterable[ReviewItem],
    adjudications: Iterable[ReviewItem] = (),
    *,
    judgments: Iterable[Judgment] = (),
) -> Imported:
    """Joins the key, two reviewers' answers, a third one's decisions and a judge's verdicts by their evidence.

    Rows are made as calibration rows; dividing them is a step of its own.

    Raises:
        ReviewsRefused: where an answer is to no item of the key, an item is answered twice in one review, one review
            holds several people's answers, an adjudication has no reason, or evidence has two judgments.
    """
    items = {item.id: item for item in key}
    problems: list[str] = []
    one = _answers("the first review", first, items, problems)
    two = _answers("the second review", second, items, problems)
    three = _answers("the adjudication", adjudications, items, problems)
    verdicts = _judgments(judgments, problems)
    people = {next(iter(each.values())).reviewer for each in (one, two, three) if each}
    if len(people) < sum(bool(each) for each in (one, two, three)):
        problems.append("reviews and adjudication must be by different people: one name occurs twice")
    for answer in three.values():
        if answer.label is not None and not (answer.note and answer.note.strip()):
            problems.append(f"the adjudication of '{answer.id}' has no reason: write it as the note")
    if problems:
        raise ReviewsRefused(problems)

    rows: list[CalibrationRow] = []
    unlabelled: dict[str, tuple[str, ...]] = {}
    to_adjudicate: list[KeyItem] = []
    for item in items.values():
        reviews = [review for answers in (one, two) if (review := _review(answers.get(item.id))) is not None]
        if len(reviews) < 2:
            names = [next(iter(each.values())).reviewer if each else "nobody yet" for each in (one, two)]
            given = {review.reviewer for review in reviews}
            unlabelled[item.id] = tuple(name for name in names if name not in given)
            continue
        decision = _decision(three.get(item.id)) if reviews[0].label != reviews[1].label else None
        if reviews[0].label != reviews[1].label and decision is None:
            to_adjudicate.append(item)
            continue
        rows.append(_row(item, reviews, decision, verdicts.get(item.evidence_hash)))
    return Imported(tuple(rows), unlabelled, tuple(to_adjudicate), sum(row.judgment is None for row in rows))


def _row(
    item: KeyItem, reviews: list[Review], decision: Adjudication | None, judgment: Judgment | None
) -> CalibrationRow:
    return CalibrationRow(
        id=item.id,
        group=item.group,
        split="calibration",
        scope=item.scope,
        synthetic=item.synthetic,
        slices=item.slices,
        evidence=item.evidence,
        evidence_hash=item.evidence_hash,
        # By name, so that which review was given first changes no hash.
        reviews=sorted(reviews, key=lambda review: review.reviewer),
        adjudication=decision,
        judgment=judgment,
    )


def _answers(
    what: str, answers: Iterable[ReviewItem], items: Mapping[str, KeyItem], problems: list[str]
) -> dict[str, ReviewItem]:
    found: dict[str, ReviewItem] = {}
    for answer in answers:
        item = items.get(answer.id)
        if item is None:
            problems.append(f"{what} answers '{answer.id}', which is no item of the key: is it of another export?")
        elif (item.evidence_hash, item.scope) != (answer.evidence_hash, answer.scope):
            problems.append(f"{what} answers '{answer.id}' on other evidence or in another scope than the key's")
        elif answer.id in found:
            problems.append(f"{what} answers '{answer.id}' twice: keep one")
        else:
            found[answer.id] = answer
    people = sorted({answer.reviewer for answer in found.values()})
    if len(people) > 1:
        problems.append(f"{what} is by several people ({', '.join(people)}): give each one's apart")
    return found


def _judgments(judgments: Iterable[Judgment], problems: list[str]) -> dict[str, Judgment]:
    found: dict[str, Judgment] = {}
    for judgment in judgments:
        if found.setdefault(judgment.evidence_hash, judgment) != judgment:
            problems.append(f"the evidence {judgment.evidence_hash} has two different judgments: keep one judge's")
    return found


def _review(answer: ReviewItem | None) -> Review | None:
    if answer is None or answer.label is None:
        return None
    return Review(reviewer=answer.reviewer, label=answer.label, note=answer.note)


def _decision(answer: ReviewItem | None) -> Adjudication | None:
    if answer is None or answer.label is None or answer.note is None:
        return None
    return Adjudication(reviewer=answer.reviewer, label=answer.label, reason=answer.note)
