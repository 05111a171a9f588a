"""Dividing rows into those that calibrate a judge and those held out, and what the held-out ones say.

A group goes as a whole, by the hash of its name and a seed, so that no customer helps to calibrate a judge and then to
examine it. A group's side does not depend on which other groups there are: rows that come later move none of the
earlier ones. The price is that the share is met on average, not exactly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from grading.calibration.record import CalibrationRecord, Exclusions, RowsRefused, compile_record
from grading.calibration.rows import CalibrationRow, Split
from simulator.canonical import canonical_hash


class SplitRefused(ValueError):  # noqa: N818 - reads as what happened
    """These rows cannot be divided like this; the message says what to do."""


def split_of(group: str, *, seed: int, held_out: Fraction) -> Split:
    """The side of a group.

    Args:
        held_out: the share of groups to hold out, from 0 to 1.
    """
    digest = canonical_hash({"group": group, "seed": seed}).removeprefix("sha256:")
    return "held_out" if Fraction(int(digest, 16), 2**256) < held_out else "calibration"


def split_rows(rows: Sequence[CalibrationRow], *, seed: int, held_out: Fraction) -> list[CalibrationRow]:
    """The rows, in their order, each with its group's side.

    Raises:
        SplitRefused: where a row that was held out would calibrate, or nothing would be on one of two sides.
    """
    if not 0 <= held_out <= 1:
        raise SplitRefused(f"the share to hold out must be between 0 and 1: got {float(held_out)}")
    divided = [row.model_copy(update={"split": split_of(row.group, seed=seed, held_out=held_out)}) for row in rows]
    for before, after in zip(rows, divided, strict=True):
        if before.split == "held_out" and after.split == "calibration":
            raise SplitRefused(
                f"row '{before.id}' is held out and would now calibrate: keep the seed and the share that it was "
                "divided with, or a larger share"
            )
    sides = {row.split for row in divided}
    if 0 < held_out < 1 and len(sides) < 2:
        groups = len({row.group for row in rows})
        raise SplitRefused(
            f"all {groups} groups would be on the side '{sides.pop() if sides else 'none'}': "
            "give another seed or share, or more groups"
        )
    return divided


@dataclass(frozen=True)
class HeldOutReport:
    """A judge on rows that had no part in its calibration. It qualifies nothing: it shows what to expect."""

    calibration: CalibrationRecord
    held_out: CalibrationRecord


def held_out_report(
    record: CalibrationRecord,
    rows: Iterable[CalibrationRow],
    *,
    reviewers: Iterable[str],
    excluded: Exclusions | None = None,
) -> HeldOutReport:
    """What the judge of a record did on held-out rows.

    Raises:
        RowsRefused: for the same reasons as a record, and where a row shares its id, group or evidence with the
            calibration, or was judged by another configuration.
    """
    apart = Exclusions.of(record.rows).joined(excluded or Exclusions())
    held_out = compile_record(
        rows, scope=record.scope, reviewers=frozenset(reviewers), excluded=apart, split="held_out"
    )
    if held_out.configuration_hash != record.configuration_hash:
        raise RowsRefused(
            [
                f"the held-out rows are judged by {held_out.configuration_hash}, the calibration is of "
                f"{record.configuration_hash}: judge them with that configuration"
            ]
        )
    return HeldOutReport(record, held_out)
