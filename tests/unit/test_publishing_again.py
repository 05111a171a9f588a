"""What was published is left alone until something about it changes, in the middle of a run too."""

from typing import Any, cast

import pytest

from grading import publication
from grading.commands.publish import Target, publish_to
from grading.publisher.reconcile import Counts, Published
from grading.store import Store, reading

URL = "http://phoenix.invalid:6006"
MATRIX = reading.Matrix(1, "sha256:" + "a" * 64, "refunds", "complete", 0)
STORE = cast("Store", None)


def published(state: Any) -> reading.Publication:
    return reading.Publication(1, URL, state, 0, None, None, f"{URL}/compare")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def publish_matrix(store: Store, matrix: reading.Matrix, url: str, **_: Any) -> Published:
        made.append(url)
        return Published(f"{url}/dataset", f"{url}/compare", Counts(), (), complete=True)

    monkeypatch.setattr(publication, "publish_matrix", publish_matrix)
    return made


@pytest.mark.parametrize(("state_after", "expected"), [("published", []), ("stale", [URL])])
def test_what_was_judged_since_it_was_published_is_published_again(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, state_after: str, expected: list[str]
) -> None:
    target = Target.of(URL)
    target.up_to_date = published("published")
    monkeypatch.setattr(reading, "publications", lambda store, matrix_id: [published(state_after)])
    found = publish_to(target, STORE, MATRIX)
    assert calls == expected
    assert found is not None
    assert found["complete"] is True
