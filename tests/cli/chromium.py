"""Debian's Chromium, headless, for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine; the test is skipped if there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("the page is tested in Chromium: apt-get install chromium")
    with sync_playwright() as driver:
        # Root, as in a container, has no sandbox of Chromium; the pages of these tests are our own.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, **options: object) -> Iterator[Page]:
    """A page that is open; the test fails if it logs an error, raises one, or asks another server for anything."""
    page = browser.new_page(**options)  # type: ignore[arg-type]
    page.set_default_timeout(20_000)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    origin = "/".join(url.split("/")[:3])
    own = (origin, "data:", "about:")
    page.on("request", lambda request: None if request.url.startswith(own) else faults.append(request.url))
    page.goto(url)
    page.wait_for_selector("#main > *")
    yield page
    assert faults == []
    page.close()
