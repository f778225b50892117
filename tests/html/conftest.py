"""A real Chromium that may ask for nothing, and pages opened in it from the disk."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, expect, sync_playwright

from patience import PATIENCE_S
from report_page import write_report_of_80

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
Open = Callable[..., Page]
PATIENCE_MS = 1e3 * PATIENCE_S
expect.set_options(PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the Chromium of this machine, or skip."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=list(FLAGS), timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


def watch(page: Page, address: str, troubles: list[str]) -> None:
    """Note what a report may not do: ask for anything but its file, complain, or speak up."""

    def asked(request: Request) -> None:
        if request.url != address:
            troubles.append(f"asked for {request.url}")

    def spoke(dialog: Dialog) -> None:
        troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", asked)
    page.on("dialog", spoke)
    page.on("console", lambda said: troubles.append(f"console: {said.text}"))
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open report files; any request but for the file, any error and any dialog fails the test."""
    troubles: list[str] = []
    contexts = []

    def open_page(path: Path, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        address = path.as_uri()
        watch(page, address, troubles)
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [] == troubles


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a timed run of 80 layers with a diagnosis."""
    return write_report_of_80(tmp_path_factory.mktemp("run"))
