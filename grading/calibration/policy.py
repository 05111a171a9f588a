"""What an operator asks of a calibration before a judge's word counts, and how many more rows that takes."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field

from grading.statistics.proportion import clopper_pearson_upper
from simulator.model import WireModel

CONFIDENCE = 0.95
"""One-sided: the upper end of the two-sided 90 % interval."""

MOST_ROWS = 10_000_000
"""Where the search for enough rows ends: such a policy asks for what nobody can label."""


def _share(text: str) -> str:
    if not 0 <= Fraction(text) <= 1:
        raise ValueError("must be between 0 and 1")
    return text


Share = Annotated[str, Field(pattern=r"^[0-9](\.[0-9]{1,9})?$"), AfterValidator(_share)]
"""A share as decimal text: exact, and the same in every hash."""


class CalibrationPolicy(WireModel):
    """The thresholds. The default: 59 false rows without a false pass are the fewest whose bound reaches 0.05."""

    minimum_truthful: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 30
    minimum_false: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 59
    false_pass_upper: Share = "0.05"  # noqa: S105 - no password
    false_block_upper: Share = "0.10"
    abstentions: Share = "0.10"
    """The largest share of rows on which the judge may abstain."""
    synthetic_permitted: bool = False


@dataclass(frozen=True)
class Counts:
    """What a set of labelled and judged rows comes to."""

    truthful: int
    false: int
    false_passes: int
    """False messages that the judge passed."""
    false_blocks: int
    """Truthful messages that the judge did not pass, abstentions among them."""
    abstentions: int
    """On rows of both classes."""

    @property
    def rows(self) -> int:
        return self.truthful + self.false

    @cached_property
    def false_pass_upper(self) -> float:
        """The exact one-sided 95 % upper bound of the rate of false passes; 1 where there is no false row."""
        return _upper(self.false_passes, self.false)

    @cached_property
    def false_block_upper(self) -> float:
        """The exact one-sided 95 % upper bound of the rate of false blocks; 1 where there is no truthful row."""
        return _upper(self.false_blocks, self.truthful)


@dataclass(frozen=True)
class RowsNeeded:
    """How many more rows a policy needs, at the least: if the judge is right on every one of them.

    ``None`` is none that could be labelled: the thresholds cannot be reached.
    """

    truthful: int | None
    false: int | None
    of_either: int | None
    """In all, for the share of abstentions; rows of both classes count into it."""


def rows_needed(counts: Counts, policy: CalibrationPolicy) -> RowsNeeded:
    """What is missing until the policy's thresholds are met."""
    truthful = _more(counts.false_blocks, counts.truthful, policy.minimum_truthful, policy.false_block_upper)
    false = _more(counts.false_passes, counts.false, policy.minimum_false, policy.false_pass_upper)
    return RowsNeeded(truthful, false, _more_for_abstentions(counts, Fraction(policy.abstentions)))


def _more(errors: int, rows: int, minimum: int, bound: str) -> int | None:
    def enough(total: int) -> bool:
        return _upper(errors, total) <= float(bound)

    low = max(rows, minimum)
    if enough(low):
        return low - rows
    high = max(low, 1)
    while not enough(high):
        high *= 2
        if high > MOST_ROWS:
            return None
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high - rows


def _more_for_abstentions(counts: Counts, limit: Fraction) -> int | None:
    if counts.abstentions == 0:
        return 0
    if limit == 0:
        return None
    fewest = -(-counts.abstentions // limit)
    return max(0, int(fewest) - counts.rows)


def _upper(errors: int, rows: int) -> float:
    return clopper_pearson_upper(errors, rows, CONFIDENCE) if rows else 1.0
