"""What a person finds in Phoenix's comparison of the conditions: both, with their scores, the baseline first."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grading.phoenix_server import EmbeddedPhoenix
from grading.publisher.phoenix import Phoenix
from grading.publisher.reconcile import publish
from tests.integration.phoenix_fixture import phoenix_server
from tests.phoenix_sample import BASELINE, MUTANT, sample

__all__ = ["phoenix_server"]

SCREENSHOTS = "CELLWISE_TEST_SCREENSHOTS"


class Page:
    """A page of a headless browser that waits for what it is asked for."""

    def __init__(self, page: object) -> None:
        self._page = page

    def open(self, url: str) -> None:
        self._page.goto(url)  # type: ignore[attr-defined]

    def wait_for(self, text: str) -> None:
        self._page.get_by_text(text).first.wait_for(timeout=120_000)  # type: ignore[attr-defined]

    def lines(self) -> list[str]:
        return [line.strip() for line in self._page.inner_text("body").splitlines() if line.strip()]  # type: ignore[attr-defined]

    def keep(self, name: str) -> None:
        folder = os.environ.get(SCREENSHOTS)
        if folder:
            self._page.screenshot(path=str(Path(folder) / f"{name}.png"))  # type: ignore[attr-defined]


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1600, "height": 1000})
    yield Page(opened)
    opened.close()


def test_the_comparison_shows_both_conditions_with_their_scores(phoenix_server: EmbeddedPhoenix, page: Page) -> None:
    with Phoenix(phoenix_server.url) as client:
        published = publish(sample(), client)

    page.open(f"{published.compare_url}&view=metrics")
    page.wait_for("contract")
    page.wait_for("0.25")
    page.keep("metrics")
    lines = page.lines()
    at = lines.index("Evaluations")
    assert lines[lines.index("experiment") :][:3] == ["experiment", BASELINE, "baseline"]
    # Means over 8 runs each: completed 6 and 3, contract 8 and 2, coverage 8 and 8; then the change in percent.
    assert lines[at + 1 : at + 12] == [
        *("completed", "0.75", "0.37", "50%"),
        *("contract", "1", "0.25", "75%"),
        *("coverage", "1", "1"),
    ]

    page.open(published.compare_url)
    page.wait_for("issue_refund(4000, null, USD, refund:order-a, order-a): committed")
    page.wait_for("not_completed")
    page.keep("grid")
    lines = page.lines()
    assert {BASELINE, MUTANT, "refund order-b", "passed", "failed", "1 / 2"} <= set(lines)

    page.open(published.dataset_url)
    page.wait_for(MUTANT)
    page.wait_for("0.25")
    page.keep("experiments")
    lines = page.lines()
    row = lines[lines.index(MUTANT) :]
    assert {"0.37", "0.25", "1.00", "250ms"} <= set(row)
