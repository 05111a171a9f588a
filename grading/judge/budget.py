"""Admission before a call is made: what it may use at most must fit into what is left."""

import threading
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from grading.cost import UNKNOWN, Cost, micro_dollars
from grading.judge import Reservation
from grading.judge.configuration import Budget, Prices


def cost_of(prices: Prices | None, input_tokens: int | None, output_tokens: int | None) -> Cost:
    """A call's cost from its usage, rounded up to micro-dollars. Without prices or usage it is unknown."""
    if prices is None or input_tokens is None or output_tokens is None:
        return UNKNOWN
    # Dollars for a million tokens are micro-dollars for one.
    exact = Decimal(prices.input) * input_tokens + Decimal(prices.output) * output_tokens
    return Cost("known", int(exact.to_integral_value(ROUND_CEILING)))


@dataclass(slots=True)
class Spent:
    """What calls used, in the worst case where that is unknown."""

    tokens: int = 0
    micro_dollars: int = 0


class Admission:
    """The budget of one matrix, shared by the threads that judge it.

    Args:
        budget: None admits everything.
        spent: what earlier calls for the matrix used.
    """

    def __init__(self, budget: Budget | None, spent: Spent) -> None:
        self._tokens = budget.tokens if budget is not None else None
        dollars = budget.dollars if budget is not None else None
        self._micro = micro_dollars(dollars) if dollars is not None else None
        self._spent = spent
        self._lock = threading.Lock()

    def admit(self, most: Reservation) -> bool:
        """Reserves what a call may use, or says that it does not fit."""
        with self._lock:
            if self._tokens is not None and self._spent.tokens + most.tokens > self._tokens:
                return False
            if self._micro is not None and self._spent.micro_dollars + (most.micro_dollars or 0) > self._micro:
                return False
            self._spent.tokens += most.tokens
            self._spent.micro_dollars += most.micro_dollars or 0
            return True

    def settle(self, most: Reservation, tokens: int | None, cost: Cost) -> None:
        """Replaces a reservation by what the call used; where that is unknown, the reservation stands."""
        with self._lock:
            if tokens is not None:
                self._spent.tokens += tokens - most.tokens
            if cost.micro_dollars is not None:
                self._spent.micro_dollars += cost.micro_dollars - (most.micro_dollars or 0)
