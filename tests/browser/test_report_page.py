"""What a person finds in the report, opened from a file without a network, whatever agents and customers wrote."""

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.command import cellwise

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CASES = f"""\
version: 1
world: orders
records:
  - order_id: order-a
    customer_id: customer-1
    description: blue backpack <b>one</b>
    amount_cents: 4000
    currency: USD
    eligible: true
  - order_id: order-b
    customer_id: customer-1
    description: blue backpack two
    amount_cents: 4500
    currency: EUR
    eligible: true
  - order_id: order-c
    customer_id: customer-2
    description: blue backpack two
    amount_cents: 4000
    currency: USD
    eligible: true
cases:
  - id: plain
    customer_id: customer-1
    utterance: Refund the blue backpack two.
    expectation: {{order: order-b, clarifications: 0}}
  - id: "<script>alert(1)</script> & 'quoted'"
    customer_id: customer-1
    utterance: '{MARKUP.replace("'", "''")} Refund the blue backpack two.'
    expectation: {{order: order-b, clarifications: 0}}
"""
MATRIX = """\
version: 1
name: marked-up
cases: cases.yaml
conditions:
  - {name: "base<i>line</i>", agent: descriptive-control}
  - {name: candidate, agent: first-record-mutant}
baseline: "base<i>line</i>"
repetitions: 2
"""
WIDTHS = (380, 900, 1600)
SCREENSHOTS = "CELLWISE_TEST_SCREENSHOTS"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "cases.yaml").write_text(CASES)
    (folder / "matrix.yaml").write_text(MATRIX)
    store = str(folder / "store.db")
    cellwise("run", "matrix.yaml", "--phoenix", "off", store=store, cwd=folder)
    cellwise("report", "-o", "report.html", store=store, cwd=folder)
    return folder / "report.html"


def opened(browser: "Browser", report: Path, **options: Any) -> tuple["Page", list[str]]:
    """The report without a network, and what the page complained of or asked for."""
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: trouble.append(request.url) if request.url != report.as_uri() else None)
    page.goto(report.as_uri())
    return page, trouble


def test_the_heat_map_the_coverage_and_both_transcripts_of_a_regression_are_there(
    browser: "Browser", report: Path
) -> None:
    page, trouble = opened(browser, report)
    assert "4 of 4" not in page.inner_text("#coverage")
    assert "8 of 8 trials have a verdict (100 %)" in page.inner_text("#coverage")
    cells = page.locator(".heat tbody td.cell")
    assert [cell.get_attribute("aria-label") for cell in cells.all()] == [
        "2 of 2 passed", "1 of 2 passed", "2 of 2 passed", "1 of 2 passed",
    ]  # fmt: skip
    assert sorted(cells.locator(".marks").all_inner_texts()) == ["●●", "●●", "✕●", "✕●"]
    pair = page.locator("details.pair.regressed").first
    left, right = pair.locator(".transcript").all_inner_texts()
    assert left.startswith("base<i>line</i> / ")
    assert right.startswith("candidate / ")
    assert "passed, task completed" in left
    assert "failed, task not completed" in right
    places = pair.locator("table.differences tbody th").all_inner_texts()
    assert "record 1 (order-a) refund_transaction_count" in places
    assert trouble == []


def test_markup_from_the_world_is_text_and_nothing_runs(browser: "Browser", report: Path) -> None:
    page, trouble = opened(browser, report)
    assert page.title().startswith("marked-up ")
    assert page.locator("main img, main script, main b i, .transcript div *, pre *").count() == 0
    assert "<script>alert(1)</script> & 'quoted'" in page.inner_text(".heat")
    transcripts = page.locator("details.pair .transcript")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert any(MARKUP in text for text in transcripts.all_inner_texts())
    assert any("blue backpack <b>one</b>" in text for text in transcripts.all_inner_texts())
    assert trouble == []


def test_a_script_that_is_not_ours_would_be_refused(browser: "Browser", report: Path) -> None:
    page, trouble = opened(browser, report)
    page.evaluate(
        "(() => { const own = document.createElement('script'); own.textContent = \"document.title = 'owned'\";"
        " document.body.append(own); })()"
    )
    assert page.title() != "owned"
    assert any("Content Security Policy" in one for one in trouble)


def test_the_filter_finds_cases_by_name(browser: "Browser", report: Path) -> None:
    page, _ = opened(browser, report)
    page.fill("#find", "PLAIN")
    assert page.locator(".heat tbody tr:visible").count() == 1
    assert page.inner_text("#shown") == "1 of 2 cases"
    page.fill("#find", "")
    page.check("#only")
    assert page.locator(".heat tbody tr:visible").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_width_in_light_and_dark(browser: "Browser", report: Path, width: int, scheme: str) -> None:
    page, _ = opened(browser, report, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing but a table scrolls sideways"
    articles = [one.bounding_box() for one in page.locator("details.pair[open] article").all()[:2]]
    assert all(articles)
    side_by_side = articles[0]["y"] == articles[1]["y"]  # type: ignore[index]
    assert side_by_side == (width > 768)
    for name, ratio in contrasts(page).items():
        assert ratio >= 4.5, f"{name} in {scheme}"
    folder = os.environ.get(SCREENSHOTS)
    if folder:
        page.screenshot(path=str(Path(folder) / f"report-{width}-{scheme}.png"), full_page=True)


def contrasts(page: "Page") -> dict[str, float]:
    """WCAG 2 contrast of text and ground for each level of the heat map and each kind of remark."""
    found: dict[str, float] = page.evaluate(
        """() => {
          const channel = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
          const light = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(value => channel(value / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ground = one => {
            const own = getComputedStyle(one).backgroundColor;
            return own === 'rgba(0, 0, 0, 0)' ? ground(one.parentElement) : own;
          };
          const table = document.querySelector('.heat tbody tr');
          const found = {};
          const names = ['cell l0', 'cell l1', 'cell l2', 'cell l3', 'cell l4', 'change regressed', 'change fixed'];
          for (const name of names) {
            const cell = document.createElement('td');
            cell.className = name;
            table.append(cell);
            const [a, b] = [light(getComputedStyle(cell).color), light(ground(cell))].sort((x, y) => y - x);
            found[name] = (a + 0.05) / (b + 0.05);
            cell.remove();
          }
          return found;
        }"""
    )
    return found


def test_the_levels_of_the_heat_map_are_told_apart_without_colour(browser: "Browser", report: Path) -> None:
    """In black and white only the lightness is left: it falls with every level on white, and rises on black."""
    for scheme, sign in (("light", -1), ("dark", 1)):
        page, _ = opened(browser, report, color_scheme=scheme)
        lightness: list[float] = page.evaluate(
            """() => [0, 1, 2, 3, 4].map(level => {
              const cell = document.createElement('td');
              cell.className = `cell l${level}`;
              document.querySelector('.heat tbody tr').append(cell);
              const [r, g, b] = getComputedStyle(cell).backgroundColor.match(/[\\d.]+/g).map(Number);
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            })"""
        )
        steps = [sign * (after - before) for before, after in pairwise(lightness)]
        assert all(step > 12 for step in steps), (scheme, lightness)


def test_on_paper_every_transcript_is_unfolded(browser: "Browser", report: Path) -> None:
    page, _ = opened(browser, report)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = false })")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.pair:not([open])").count() == 0
    page.emulate_media(media="print")
    assert not page.is_visible("nav")
    assert page.pdf(format="A4")[:5] == b"%PDF-"
