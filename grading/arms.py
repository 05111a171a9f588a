"""The two arms of a comparison: roles that conditions play, not names.

A comparison is no kind of file but a matrix that has what a decision needs (docs/decisions/0006).
"""

from typing import Literal

from grading.manifest import Manifest

Arm = Literal["baseline", "candidate"]
ARMS: tuple[Arm, Arm] = ("baseline", "candidate")
"""By the position of their condition: the manifest lists the baseline first."""


class NotAComparison(ValueError):  # noqa: N818 - reads as what is wrong
    """A matrix from which nothing can be decided. ``reasons`` holds each one."""

    def __init__(self, name: str, reasons: list[str]) -> None:
        super().__init__(f"{name} is no comparison: " + "; ".join(reasons))
        self.reasons = reasons


def check_comparison(manifest: Manifest) -> None:
    """Refuses a matrix that is no comparison.

    Raises:
        NotAComparison: with every reason and what to write instead.
    """
    reasons = []
    if len(manifest.conditions) != len(ARMS):
        reasons.append(f"it needs exactly two conditions and has {len(manifest.conditions)}")
    if manifest.baseline is None:
        reasons.append("it needs a baseline: name one of its conditions")
    if manifest.repetitions % 2:
        reasons.append(
            f"it needs an even number of repetitions, so that each arm goes first equally often, not "
            f"{manifest.repetitions}"
        )
    if manifest.presented_order != "alternate":
        reasons.append(f"it needs presented_order alternate, not {manifest.presented_order}")
    if reasons:
        raise NotAComparison(manifest.name, reasons)
