"""Fair sharing: which matrix starts its next Job, and how many pods of it may run at once.

Every running matrix gets the same share of the Jobs in flight; what one does not use the others have (max-min
fairness). A newcomer gets its share as Jobs of the others end: none is ended for it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claimant:
    """A running matrix."""

    matrix_id: int
    in_flight: int
    """Jobs that are planned or created and have not ended."""
    wanting: int
    """Cells that could start one."""


def shares(claimants: Collection[Claimant], limit: int) -> dict[int, int]:
    """How many more Jobs each matrix may start now, by its id.

    Args:
        limit: Jobs in flight, of all of them together.
    """
    given = {one.matrix_id: 0 for one in claimants}
    left = limit - sum(one.in_flight for one in claimants)
    waiting = [one for one in claimants if one.wanting > 0]
    while left > 0 and waiting:
        poorest = min(waiting, key=lambda one: (one.in_flight + given[one.matrix_id], one.matrix_id))
        given[poorest.matrix_id] += 1
        left -= 1
        if given[poorest.matrix_id] == poorest.wanting:
            waiting.remove(poorest)
    return given


@dataclass(slots=True)
class Room:
    """How many more pods may run at once: of a matrix, and of all conditions that share a provider."""

    provider_limits: Mapping[str, int]
    """By provider: trials at a time."""
    _of_matrix: dict[int, int] = field(default_factory=dict)
    _of_provider: dict[str, int] = field(default_factory=dict)

    def take(self, matrix_id: int, provider: str | None, pods: int) -> None:
        """Counts pods that run or may start at any moment."""
        self._of_matrix[matrix_id] = self._of_matrix.get(matrix_id, 0) + pods
        if provider is not None:
            self._of_provider[provider] = self._of_provider.get(provider, 0) + pods

    def left(self, matrix_id: int, parallelism: int | None, provider: str | None) -> int | None:
        """How many more may start; None for any number.

        Args:
            parallelism: the matrix's own limit.
        """
        rooms = []
        if parallelism is not None:
            rooms.append(parallelism - self._of_matrix.get(matrix_id, 0))
        if provider is not None and provider in self.provider_limits:
            rooms.append(self.provider_limits[provider] - self._of_provider.get(provider, 0))
        return max(0, min(rooms)) if rooms else None
