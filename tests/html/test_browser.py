"""The report in a real browser: it works by mouse and keyboard, and asks for nothing."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import run_folders
from effort import nightly
from golden_screens import PLAN, tf32
from precision_bisect.explaining.diagnosis.findings import Advice, Birth, Findings
from precision_bisect.runs.runfolder import DIAGNOSIS, POLYGRAPHY_SCRIPT, RESULT
from precision_bisect_reports.html.page import write_report
from report_page import KEPT, NAMES

Open = Callable[..., Page]
TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""In the first one the page learns what has come into sight."""
DRAWN = """
[...document.querySelectorAll(".chart")]
  .every(chart => !chart.checkVisibility() || chart.querySelector("canvas"))
"""
CURVE = "echarts.getInstanceByDom(document.querySelector('#curve .chart'))"
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</script><script>alert(2)//",
    "a&amp;b'\"`${alert(3)}\u2028",
    "<!--<script>",
    "__proto__",
)


def see_everything(page: Page) -> None:
    """Scroll to the end, so that all charts are drawn."""
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    height = page.evaluate("document.body.scrollHeight")
    for top in range(0, height, 500):
        page.evaluate(f"window.scrollTo(0, {top})")
        page.evaluate(TWO_FRAMES)
    page.wait_for_function(DRAWN)


def test_everything_is_drawn_without_a_request(opened: Open, report: Path) -> None:
    """The answer, three charts of the search, sensitivities and exports are there."""
    page = opened(report)
    see_everything(page)
    expect(page.locator("h1")).to_have_text("3 of 80 layers stay FP32, the rest runs in FP16")
    for chart in ("narrowed", "sizes", "latencies"):
        expect(page.locator(f"#search .chart.{chart} canvas")).to_be_visible()
    expect(page.locator("#sensitivities .chart canvas")).to_be_visible()
    expect(page.locator("#detail .chart canvas")).to_be_visible()
    expect(page.locator("#advice")).to_contain_text("Do it")
    expect(page.locator("#spread")).to_contain_text("Op_3 → Op_4")


def test_the_plan_to_deploy_stands_beside_the_curve_and_fp32(opened: Open, tmp_path: Path) -> None:
    """It need not hold the plans of the curve, and FP32 as libraries run it may be as fast."""
    about = {"deploy": PLAN, "tf32": tf32(passed=True, fp32_passed=True), "tolerance": 0.01}
    folder = run_folders.write_run(tmp_path, NAMES, KEPT)
    page = opened(write_report(run_folders.write_curve(folder, NAMES, KEPT, **about)))
    see_everything(page)
    (mark,) = page.evaluate(f"{CURVE}.getOption()")["series"][-1]["data"]
    shown = {"name": "to deploy", "kept_count": len(PLAN.kept), "error": PLAN.error}
    assert shown == mark["deploy"]
    page.get_by_text("Error by time: 4 plans as a table").click()
    rows = page.locator("#curve details").nth(1).locator("tbody tr")
    expect(rows).to_have_text(
        ["to deploy0.000770.6", "fewest0.0080.62", "FP32, TF320.000140.7", "FP32, no TF3201"]
    )


@pytest.mark.parametrize("scheme", ["light", *nightly("dark")])
def test_the_curve_is_the_first_chart(opened: Open, tmp_path: Path, scheme: str) -> None:
    """Each point tells its figures, named ones their name; the tolerance is a line."""
    folder = run_folders.write_curve(run_folders.write_run(tmp_path, NAMES, KEPT), NAMES, KEPT)
    page = opened(write_report(folder), color_scheme=scheme)
    see_everything(page)
    assert page.locator("#curve .chart").evaluate("e => e === document.querySelector('.chart')")
    options = page.evaluate(f"{CURVE}.getOption()")
    names = [options[each][0]["name"] for each in ("xAxis", "yAxis")]
    assert ["layers kept (log)", "error (log)"] == names
    worst, median, named, deployed = options["series"]
    assert [] == deployed["data"]
    assert 1 == page.locator("#curve .chart").count()
    assert [0, 2, 3, 5] == [each["point"]["kept_count"] for each in median["data"]]
    assert 4 == len(worst["data"])
    # Samples that did not choose a plan count in its worst error, too.
    assert ("worst", "median of copies") == (worst["name"], median["name"])
    assert ["all_low", "answer", "margin"] == [each["point"]["point"] for each in named["data"]]
    assert -2 == median["markLine"]["data"][0]["yAxis"]
    page.evaluate(f"{CURVE}.dispatchAction({{type: 'showTip', seriesIndex: 1, dataIndex: 2}})")
    tip = page.locator("#curve .tip")
    expect(tip.locator("b")).to_have_text("answer")
    for text in (
        "3 layers kept",
        "median of copies 0.007, worst 0.009",
        "0.9 × the tolerance",
        "2.5 ms",
    ):
        expect(tip).to_contain_text(text)
    page.get_by_text("The curve: 4 plans as a table").click()
    rows = page.locator("#curve details tbody tr")
    expect(rows.nth(2)).to_have_text("30.0070.0092.5 msanswer")
    expect(rows.first).to_have_text("0not finitenot finitenot measuredall low")


def test_culprits_lead_to_their_layers(opened: Open, tmp_path: Path) -> None:
    """Each culprit has its cause, and a click shows its layer; without a curve all is gone."""
    folder = run_folders.write_run(tmp_path, NAMES, KEPT)
    expect(opened(write_report(folder)).locator("#curve")).to_have_count(0)
    page = opened(write_report(run_folders.write_curve(folder, NAMES, KEPT)))
    expect(page.locator("#curves")).to_contain_text("3 layers break FP16")
    page.locator("#curves .culprits summary").click()
    row = page.locator("#curves .culprits tbody tr").nth(1)
    expect(row).to_contain_text("overflow: so")
    row.get_by_role("button").click()
    expect(page.locator("#detail h3")).to_have_text("Op_12")


@pytest.mark.parametrize("timed", [True, False], ids=["measured", "estimated"])
def test_an_estimated_front_is_told_from_a_measured_one(
    opened: Open, report: Path, tmp_path: Path, timed: bool
) -> None:
    """Without an engine the front is hollow and dashed, against an estimated cost, and says so."""
    name, chart, line, cost = (
        ("front", "latencies", "solid", "1.03 ms")
        if timed
        else ("front, estimated", "costs", "dashed", "2.00e-6 ms, estimated")
    )
    page = opened(report if timed else write_report(with_estimates(tmp_path)))
    for each in (chart, "sizes"):
        page.locator(f"#search .chart.{each}").scroll_into_view_if_needed()
        expect(page.locator(f"#search .chart.{each} canvas")).to_be_visible()
    series = "getOption().series.map((each) => [each.name, each.lineStyle?.type])"
    drawn = {
        each: page.evaluate(
            f"echarts.getInstanceByDom(document.querySelector('#search .chart.{each}')).{series}"
        )
        for each in (chart, "sizes")
    }
    assert [name, line] in drawn[chart]
    assert name in [each for each, _ in drawn["sizes"]]
    expect(page.locator("#search .chart.latencies")).to_have_count(int(timed))
    page.get_by_text("The front: 1 plan as a table").click()
    expect(page.locator("#search details").last).to_contain_text(cost)


def with_estimates(folder: Path) -> Path:
    """Write a run without latencies, the front of which has an estimated cost."""
    run_folders.write_run(folder, NAMES, KEPT)
    told = json.loads((folder / RESULT).read_text())
    point = {"kept_count": 3, "kept": [NAMES[i] for i in KEPT], "passed": True, "error": 0.008}
    speed = dict.fromkeys(("latency_ms", "spread_ms", "speedup"))
    (folder / RESULT).write_text(json.dumps({**told, "front": [{**point, **speed, "cost": 2e-6}]}))
    return folder


def test_what_was_run_is_said(opened: Open, tmp_path: Path) -> None:
    """The command line, the model, the date and the version of the run stand below the answer."""
    folder = run_folders.write_run(tmp_path, NAMES, KEPT)
    told = json.loads((folder / "status.json").read_text())
    told |= {"command": "precision-bisect a.onnx", "started": "2026-11-24T15:38:00+00:00"}
    (folder / "status.json").write_text(json.dumps(told))
    run = opened(write_report(folder)).locator("#run")
    expect(run.locator("pre")).to_have_text("precision-bisect a.onnx")
    expect(run).to_contain_text("2026-11-24 15:38")


def test_what_was_not_measured_has_no_tile(opened: Open, report: Path) -> None:
    """A forecast has neither a speed nor an engine to look into."""
    page = opened(report)
    expect(page.locator("#figures h3")).to_contain_text(["Error", "Certificate"])
    expect(page.locator("#figures")).not_to_contain_text("not measured")


def test_hostile_names_are_text(opened: Open, tmp_path: Path) -> None:
    """Markup in names, evidence, advice and files is shown as it is, and runs nothing."""
    names = [f"/m{place}/{name}" for place, name in enumerate(HOSTILE)]
    folder = run_folders.write_run(tmp_path, names, range(len(names)))
    run_folders.write_curve(folder, names, range(len(names)))
    advice = Advice(
        id="x", title=HOSTILE[0], text=HOSTILE[1], layers=[HOSTILE[2]], evidence=HOSTILE[0]
    )
    layers = [run_folders.finding(name, HOSTILE[1]) for name in names]
    birth = Birth(layer=HOSTILE[1], born="nan", path=[HOSTILE[1]], output=None)
    told = Findings(low="fp16", layers=layers, spread=[birth], advice=[advice])
    (folder / DIAGNOSIS).write_text(told.to_text())
    (folder / POLYGRAPHY_SCRIPT).write_text("".join(HOSTILE))
    page = opened(write_report(folder))
    see_everything(page)
    for place, name in enumerate(names):
        page.locator("#kept tbody tr").nth(place).get_by_role("button").first.click()
        assert name == page.locator("#detail .path").evaluate("e => e.firstChild.textContent")
        assert name == page.locator("#curves .culprits button").nth(place).text_content()
    assert 0 == page.locator("img").count()
    assert 3 == page.locator("script").count()
    chart = "echarts.getInstanceByDom(document.querySelector('#sensitivities .chart'))"
    for place, name in enumerate(names):
        tip = {"type": "showTip", "seriesIndex": 0, "dataIndex": place}
        page.evaluate(f"{chart}.dispatchAction({json.dumps(tip)})")
        assert name == page.locator("#sensitivities .tip b").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_readable_and_can_be_changed(
    opened: Open, report: Path, scheme: str
) -> None:
    """The system's scheme is taken, text has a contrast of 4.5, and the button changes it."""
    page = opened(report, color_scheme=scheme)
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", scheme)
    for _ in range(2):
        for text in ("ink", "soft", "accent", "kept", "fixed", "pass", "fail"):
            for back in ("card", "paper", "tint"):
                assert 4.5 <= contrast(page, text, back), (text, back)
        page.click("#theme")
    page.click("#theme")
    expect(root).to_have_attribute("data-theme", "dark" if scheme == "light" else "light")


def contrast(page: Page, text: str, back: str) -> float:
    """Return WCAG's contrast ratio of two colours of the page."""
    brightness = []
    for name in (text, back):
        value = page.evaluate(
            f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')"
        )
        parts = [int(part, 16) / 255 for part in re.findall("[0-9a-f]{2}", value)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        brightness.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(brightness) + 0.05) / (min(brightness) + 0.05)


WIDER = nightly(820, 1280)


@pytest.mark.parametrize("width", [400, *WIDER])
def test_no_width_needs_sideways_scrolling(opened: Open, tmp_path: Path, width: int) -> None:
    """Nothing is wider than the window or cut, on a phone as on a desk, whatever the names."""
    names = [f"jax2tf_{'get_logits_' * 20}truediv_{place}" for place in range(9)]
    folder = run_folders.write_run(tmp_path, names, KEPT[:1], timed=True)
    run_folders.write_curve(folder, names, KEPT[:1])
    entry = run_folders.finding(names[3], names[0])
    told = Findings(
        low="fp16",
        layers=[entry, replace(entry, layer=names[2], kept=False)],
        spread=[Birth(layer=names[3], born="inf", path=names, output=None)],
        advice=[Advice(id="a", title=names[0], text=names[1], layers=names[:1], evidence="e")],
    )
    (folder / DIAGNOSIS).write_text(told.to_text())
    status = {"command": f"precision-bisect {names[0]}.onnx", "message": names[1]}
    run_folders.write_status(folder, model=f"{names[0]}.onnx", state="finished", **status)
    page = opened(write_report(folder), viewport={"width": width, "height": 800})
    see_everything(page)
    for part in ("html", ".bar nav", ".run pre"):
        wide = "e => [e.scrollWidth, e.clientWidth]"
        needed, there = page.locator(part).first.evaluate(wide)
        assert needed <= there, part
    lines = page.locator(".whole:visible").evaluate_all(
        "all => all.map(e => e.getClientRects().length)"
    )
    assert {1} == {*lines}, "a flag or a date is broken at its hyphens"


def test_paper_is_light_and_complete(opened: Open, report: Path) -> None:
    """Printing takes light colours and all kept layers, draws every chart, hides the tools."""
    page = opened(report, color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator("#tree")).to_be_hidden()
    expect(page.locator("#kept tbody tr")).to_have_count(3)
    expect(page.locator("#sensitivities figure .chart canvas")).to_have_count(1)
    drawn = page.locator("#sensitivities figure .chart canvas").evaluate("e => e.offsetHeight")
    assert drawn > 50
    assert page.locator("details, button.copy, button.chip").count()
    for dead in page.locator("details, button.copy, button.chip").all():
        expect(dead).to_be_hidden()
    assert page.pdf()[:4] == b"%PDF"


def test_a_run_that_goes_on_has_a_report(opened: Open, tmp_path: Path) -> None:
    """Before anything passed, and without the list of layers, the page says so."""
    run_folders.write_ledger(tmp_path, run_folders.searched(20, [2, 5])[1:2])
    page = opened(write_report(tmp_path))
    expect(page.locator("h1")).to_have_text("No answer yet")
    expect(page.locator("#badge")).to_have_text("Not finished")
    see_everything(page)


def test_each_search_of_a_ladder_is_drawn(opened: Open, tmp_path: Path) -> None:
    """Types are listed, layers have theirs, and every search has its charts under its title."""
    page = opened(write_report(run_folders.write_ladder(tmp_path, NAMES[:20])))
    see_everything(page)
    expect(page.locator("#precisions tbody tr")).to_have_count(3)
    titles = ["search 1: fp16", "search 2: int8", "search 10: int8"]
    expect(page.locator("#search h3")).to_have_text(titles)
    expect(page.locator("#search .chart.narrowed canvas")).to_have_count(3)
    page.locator("#kept").get_by_role("button", name="Op_1").click()
    expect(page.locator("#detail")).to_contain_text("kept: FP16")


def test_5000_layers_are_searched_without_making_them_all(opened: Open, tmp_path: Path) -> None:
    """What a page takes is its elements: of all trials and layers few are made; 6 MB at most."""
    names = run_folders.names(5000)
    report = write_report(run_folders.write_run(tmp_path, names, range(0, 5000, 25), timed=True))
    assert report.stat().st_size < 6e6
    page = opened(report)
    assert page.locator("*").count() < 3000
    page.fill("#find", "Op_4321")
    expect(page.locator("#shown")).to_have_text("1 of 5,000 nodes")
    expect(page.locator("#tree .row.layer .label")).to_have_text(["Op_4321"])
    see_everything(page)


def test_thousands_of_rows_are_walked_by_keyboard(opened: Open, tmp_path: Path) -> None:
    """A module of 3,000 layers is cut into blocks; End reaches the last row without making all."""
    names = [f"node_{place}" for place in range(3000)]
    page = opened(write_report(run_folders.write_run(tmp_path, names, [1, 2999])))
    page.click("#fold")
    page.locator("#tree").focus()
    page.keyboard.press("End")
    expect(page.locator("#detail h3")).to_have_text("node_2999")
    assert page.locator("#tree .row").count() < 100
