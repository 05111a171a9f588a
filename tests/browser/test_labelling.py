"""Two people label messages on Phoenix's own page, a third decides, and a calibration record comes of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grading.calibration.items import read_key
from grading.calibration.json_lines import write_lines
from grading.calibration.rows import Judgment, read_rows
from grading.phoenix_server import EmbeddedPhoenix
from simulator.canonical import canonical_hash
from tests.browser.test_phoenix_comparison import SCREENSHOTS
from tests.integration.phoenix_fixture import phoenix_server

__all__ = ["phoenix_server"]

CONFIGURATION = canonical_hash("a judge")
WAIT = 120_000


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1700, "height": 1000})
    opened.set_default_timeout(WAIT)
    yield opened
    opened.close()


def cellwise(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grading.command_line", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def done(*arguments: str | Path) -> str:
    finished = cellwise(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def address_for(reviewer: str, output: str) -> str:
    (line,) = [line for line in output.splitlines() if f"  for {reviewer}" in line]
    return line.split("  for ")[0]


class Labeller:
    """Whoever sits before the browser."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._panel_is_open = False

    def label(self, address: str, item: str, choice: str, reason: str | None = None) -> str:
        """Labels one item; the text of the page before the choice."""
        page = self._page
        page.goto(address)
        page.get_by_text(item, exact=True).first.click()
        page.get_by_text("CUSTOMER customer-1 WRITES").last.wait_for()
        if not self._panel_is_open:
            # Once: Phoenix remembers that the panel is open.
            page.get_by_role("button", name="Annotate").first.click()
            self._panel_is_open = True
        choose = page.get_by_role("button", name="Select an item")
        choose.first.wait_for()
        seen: str = page.inner_text("body")
        choose.first.click()
        with page.expect_response(_is_saving):
            page.get_by_role("option", name=choice, exact=True).click()
        if reason is not None:
            page.get_by_role("button", name="explain").first.click()
            page.locator("[name='cellwise-message-truth.explanation']").fill(reason)
            with page.expect_response(_is_saving):
                page.get_by_role("button", name="Save", exact=True).first.click()
        folder = os.environ.get(SCREENSHOTS)
        if folder:
            page.screenshot(path=str(Path(folder) / f"labelling-{item}.png"))
        return seen


def _is_saving(response: Any) -> bool:
    return "utation" in (response.request.post_data or "")


def test_labels_on_phoenix_s_page_end_as_rows_of_a_record(
    phoenix_server: EmbeddedPhoenix, page: Any, tmp_path: Path
) -> None:
    store, review = tmp_path / "cellwise.db", tmp_path / "review"
    done("run", "order-resolution", "--phoenix", "off", "--store", store)
    phoenix = ("--phoenix", phoenix_server.url, "--store", store)
    people = ("--reviewer", "alice", "--reviewer", "bob")
    sent = done("calibrate", "export", "--out", review, "--group-by", "case", *people, *phoenix)
    key = read_key(review / "key.jsonl")
    # Ambiguous and unresolved requests are one group: a mutant that asks nothing leaves the same evidence of both.
    assert len(key) == len({item.group for item in key}) == 3
    agreed, disputed, last = (item.id for item in key)

    person = Labeller(page)
    for item, choice in ((agreed, "truthful"), (disputed, "truthful"), (last, "false")):
        person.label(address_for("alice", sent), item, choice)
    for before, (item, choice) in enumerate(((agreed, "truthful"), (disputed, "false"), (last, "false"))):
        seen = person.label(address_for("bob", sent), item, choice)
        assert "CUSTOMER customer-1 WRITES" in seen
        assert "cellwise-message-truth" in seen
        # His own earlier labels are in the list; alice's are nowhere.
        assert seen.count("View annotation details") == before
        for hidden in ("mutant", "descriptive-control", "description/", "alice", "pass"):
            assert hidden not in seen, f"bob sees {hidden!r}"

    judgments = [
        Judgment(evidence_hash=item.evidence_hash, configuration_hash=CONFIGURATION, verdict="pass") for item in key
    ]
    write_lines(tmp_path / "judgments.jsonl", judgments)
    import_rows = ("calibrate", "import", review / "key.jsonl", *people, *phoenix, "--adjudicator", "carol")
    import_rows += ("--judgments", tmp_path / "judgments.jsonl")
    waiting = cellwise(*import_rows, "--out", tmp_path / "early.jsonl")
    assert f"the reviewers disagree on {disputed}: a third one must decide" in waiting.stderr
    assert len(read_rows(tmp_path / "early.jsonl")) == 2
    person.label(address_for("carol", waiting.stderr), disputed, "false", "the message says more than the ledger")

    done(*import_rows, "--out", tmp_path / "rows.jsonl")
    registry = tmp_path / "registry.yaml"
    registry.write_text("version: 1\nreviewers: [alice, bob, carol]\n")
    compiled = ("calibrate", "compile", tmp_path / "rows.jsonl", "--registry", registry, "--json")
    record = json.loads(done(*compiled, "--out", tmp_path / "record.json"))
    assert record["counts"] | {"false_pass_upper_95": None, "false_block_upper_95": None} == {
        "truthful": 1,
        "false": 2,
        "false_passes": 2,
        "false_pass_upper_95": None,
        "false_blocks": 0,
        "false_block_upper_95": None,
        "abstentions": 0,
    }
    assert [(each["id"], each["adjudication"]["reason"]) for each in record["disagreements"]] == [
        (disputed, "the message says more than the ledger")
    ]
    assert canonical_hash(json.loads((tmp_path / "record.json").read_text())) == record["hash"]
