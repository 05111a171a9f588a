"""Money, in whole micro-dollars. What is unknown is never zero.

A component is one thing that may have cost something: an agent's run, a judge's call. It is known, unknown, or was not
dispatched at all (a judge call refused beforehand costs nothing, and is counted apart from what costs nothing known).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Literal

MICRO = 1_000_000

LARGEST = 2**53 - 1
"""Micro-dollars, some nine billion dollars: the largest integer that canonical JSON carries exactly."""

_DECIMAL_TEXT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_EXACT = Context(prec=40)


@dataclass(frozen=True, slots=True)
class Cost:
    """One component. ``micro_dollars`` is a number iff the state is ``known``."""

    state: Literal["known", "unknown", "not_dispatched"]
    micro_dollars: int | None = None

    def __post_init__(self) -> None:
        if (self.state == "known") != (self.micro_dollars is not None):
            raise ValueError(f"a cost that is {self.state} cannot have micro_dollars {self.micro_dollars}")
        if self.micro_dollars is not None and not 0 <= self.micro_dollars <= LARGEST:
            raise ValueError(f"micro-dollars go from 0 to {LARGEST}: got {self.micro_dollars}")


UNKNOWN = Cost("unknown")
NOT_DISPATCHED = Cost("not_dispatched")


@dataclass(frozen=True, slots=True)
class CostTotal:
    """A sum that says what it is a sum of."""

    known_subtotal: int = 0
    """Micro-dollars of the known components."""
    known: int = 0
    unknown: int = 0
    not_dispatched: int = 0

    def __add__(self, other: "CostTotal") -> "CostTotal":
        """Of both together.

        Raises:
            ValueError: the known subtotal is more than ``LARGEST``.
        """
        return CostTotal(
            _at_most_largest(self.known_subtotal + other.known_subtotal),
            self.known + other.known,
            self.unknown + other.unknown,
            self.not_dispatched + other.not_dispatched,
        )

    @property
    def complete(self) -> int | None:
        """Micro-dollars of everything, or ``None`` where even one component is unknown."""
        return None if self.unknown else self.known_subtotal


def known(dollars: str | None) -> Cost:
    """The component that a record names in dollars as decimal text; absent is unknown.

    Raises:
        ValueError: as ``micro_dollars``.
    """
    return UNKNOWN if dollars is None else Cost("known", micro_dollars(dollars))


def micro_dollars(dollars: str) -> int:
    """Dollars as decimal text, rounded up to whole micro-dollars, so that a total is never too small.

    Raises:
        ValueError: no such text (a sign, an exponent, NaN, a float), or more than ``LARGEST``.
    """
    if not isinstance(dollars, str) or not _DECIMAL_TEXT.fullmatch(dollars):
        raise ValueError(
            "a cost is dollars as decimal text, like '0.08', at most 12 digits on either side of the point: "
            f"got {dollars!r}"
        )
    amount = int((_EXACT.multiply(Decimal(dollars), Decimal(MICRO))).to_integral_value(ROUND_CEILING, _EXACT))
    if amount > LARGEST:
        raise ValueError(
            f"a cost of {dollars} dollars is more than the largest that can be kept, {dollar_text(LARGEST)}"
        )
    return amount


def dollar_text(micro: int) -> str:
    """Micro-dollars as exact decimal text with at least two places: 1280000 is "1.28", 1 is "0.000001"."""
    dollars, rest = divmod(micro, MICRO)
    return f"{dollars}.{f'{rest:06d}'.rstrip('0'):0<2}"


def total(components: Iterable[Cost]) -> CostTotal:
    """The sum over components, one after the other: any number of them needs no memory.

    Raises:
        ValueError: the known subtotal is more than ``LARGEST``.
    """
    subtotal = 0
    counts = {"known": 0, "unknown": 0, "not_dispatched": 0}
    for component in components:
        counts[component.state] += 1
        subtotal += component.micro_dollars or 0
    return CostTotal(_at_most_largest(subtotal), counts["known"], counts["unknown"], counts["not_dispatched"])


def _at_most_largest(subtotal: int) -> int:
    if subtotal > LARGEST:
        raise ValueError(f"the total is more than the largest that can be kept, {dollar_text(LARGEST)} dollars")
    return subtotal


def total_spent(calls: Iterable[tuple[str, Cost]]) -> CostTotal:
    """The money that left: one component for each call, however many trials use its judgment from the cache.

    Args:
        calls: the id of the call that was made, and its cost, once for each use.

    Raises:
        ValueError: one call is given two costs, or as ``total``.
    """
    costs: dict[str, Cost] = {}
    for call, cost in calls:
        if costs.setdefault(call, cost) != cost:
            raise ValueError(f"call {call!r} is given two costs: {costs[call]} and {cost}")
    return total(costs.values())
