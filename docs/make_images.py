"""Take the pictures of docs/images from the report of a run: `python docs/make_images.py RUN`.

It needs Playwright and a Chromium. The pictures in the repository are of the NAFNet example, and
one of a search with `--strategy pareto`, for which `--front RUN` gives the run.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from precision_bisect_reports.html.page import write_report

IMAGES = Path(__file__).parent / "images"
WIDE = 1280


def opened(browser: Browser, report: Path, scheme: str, width: int, height: int) -> Page:
    """Return the page of a report, as large as its picture."""
    size = {"width": width, "height": height}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    return page


def shoot(page: Page, name: str, element: str = "") -> None:
    """Write a picture of what is in sight, an element right below the head of the page."""
    if element:
        page.evaluate(f"window.scrollTo(0, document.querySelector('{element}').offsetTop - 100)")
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"{name}.png")


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description="Take the pictures of docs/images.")
    parser.add_argument("run", type=Path, help="the run folder of the example")
    parser.add_argument("--front", type=Path, required=True, help="that of a run with a front")
    parsed = parser.parse_args()
    report, front = write_report(parsed.run), write_report(parsed.front)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
        )
        shoot(opened(browser, report, "light", WIDE, 1540), "report-answer")
        shoot(opened(browser, report, "dark", WIDE, 860), "report-dark")
        shoot(opened(browser, report, "light", 390, 844), "report-phone")
        layer = opened(browser, report, "light", WIDE, 940)
        layer.evaluate("document.querySelector('#detail').scrollTop = 430")
        shoot(layer, "report-layer", "#layers")
        shoot(opened(browser, report, "light", WIDE, 1130), "report-search", "#search")
        shoot(opened(browser, front, "light", WIDE, 1130), "report-front", "#search")
        browser.close()


if __name__ == "__main__":
    main()
