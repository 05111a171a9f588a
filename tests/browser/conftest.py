"""A headless browser for these tests. A missing one skips with its reason, or fails where none may be missing."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.phoenix_fixture import REQUIRE_ALL

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    reason = "no browser: install chromium" if executable is None else None
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        reason = "playwright is not installed"
    if reason is not None:
        if os.environ.get(REQUIRE_ALL) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield started
        started.close()
