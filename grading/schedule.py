"""The planned order of a matrix's trials, registered before anything runs.

Order effects must not favour an arm: which condition goes first rotates with the repetition and the case, and the
records are presented reversed in every other repetition, alike for all conditions. With two conditions the candidate
goes first exactly where repetition + case is odd. Source: the paired-comparison seed, "Design".
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

PresentedOrder = Literal["alternate", "forward", "reversed"]
SCHEDULE_RULE: Literal["rotating"] = "rotating"
"""By repetition i, then case j, then place c: condition (c + i + j) mod C, the baseline being condition 0."""


class Planned(NamedTuple):
    """One trial's place in the plan; repetition, case and condition are positions from 0."""

    sequence: int
    repetition: int
    case: int
    condition: int


def planned(repetitions: int, cases: int, conditions: int) -> Iterator[Planned]:
    """Every trial in planned order; the sequence numbers begin with 0."""
    sequence = 0
    for repetition in range(repetitions):
        for case in range(cases):
            for place in range(conditions):
                yield Planned(sequence, repetition, case, (place + repetition + case) % conditions)
                sequence += 1


def at(sequence: int, cases: int, conditions: int) -> Planned:
    """The trial at a place of :func:`planned`, without walking through the plan."""
    pair, place = divmod(sequence, conditions)
    repetition, case = divmod(pair, cases)
    return Planned(sequence, repetition, case, (place + repetition + case) % conditions)


def presented(order: PresentedOrder, repetition: int) -> Literal["forward", "reversed"]:
    """How a repetition presents each case's records: as written, or the whole list reversed."""
    if order == "alternate":
        return "reversed" if repetition % 2 else "forward"
    return order
