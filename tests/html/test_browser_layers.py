"""Layers in the report, in a real browser: found, filtered, walked, told of, and copied."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, expect

import run_folders
import tiny
from precision_bisect.explaining.diagnosis.findings import (
    Advice,
    Findings,
    Histogram,
)
from precision_bisect.layer_table import Exclusion
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.runfolder import DIAGNOSIS, LAYER_PRECISIONS, LAYERS, RESULT
from precision_bisect_reports.html.page import write_report
from report_page import KEPT, NAMES

Open = Callable[..., Page]


def test_modules_of_pytorch_are_the_tree(opened: Open, tmp_path: Path) -> None:
    """Layers lie in the modules by their qualified names, and the answer is told by them."""
    model = tiny.write_in_modules(tmp_path / "tiny.onnx", "<b>blocks")
    tiny.search(model, tmp_path / "run")
    page = opened(tmp_path / "run" / "report.html")
    page.locator("#tree").focus()
    page.keyboard.press("Home")
    labels = page.locator("#tree .row[aria-level='1'] .label")
    expect(labels).to_have_text(["<b>blocks"])
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tree .row[aria-level='2'] .label")).to_have_text(["0", "1", "2", "3"])
    told = page.locator("#groups")
    expect(told).to_contain_text("<b>blocks.0, <b>blocks.1, <b>blocks.2 as a whole: error 0.00")
    expect(told).to_contain_text("15 layers instead of 4; none can be dropped")


def test_words_find_layers(opened: Open, report: Path) -> None:
    """Words match name, operator and cause; all must match, and modules with a match open."""
    page = opened(report)
    shown = page.locator("#shown")
    expect(shown).to_have_text("80 of 80 nodes")
    page.fill("#find", "op_4 matmul")
    expect(shown).to_have_text("8 of 80 nodes")
    expect(page.locator("#tree .row.layer")).to_have_count(8)
    page.fill("#find", "UNDERFLOW")
    expect(page.locator("#tree .row.layer .label")).to_have_text(["Op_47"])
    page.fill("#find", "(")
    expect(page.locator("#tree .row")).to_have_count(0)


def test_states_are_filtered(opened: Open, report: Path) -> None:
    """A chip takes its state out of the list and puts it back."""
    page = opened(report)
    low = page.get_by_role("button", name="low 77")
    low.click()
    expect(low).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#shown")).to_have_text("3 of 80 nodes")
    low.click()
    expect(page.locator("#shown")).to_have_text("80 of 80 nodes")


def test_only_kept_layers_are_one_click_away(opened: Open, report: Path) -> None:
    """The list has nothing else then, and the chips say so; a second click brings all back."""
    page = opened(report)
    page.get_by_role("button", name="Only kept").click()
    expect(page.locator("#shown")).to_have_text("3 of 80 nodes")
    expect(page.locator("#tree .row.layer")).to_have_count(3)
    expect(page.get_by_role("button", name="low 77")).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="All again").click()
    expect(page.locator("#shown")).to_have_text("80 of 80 nodes")


def test_constants_are_hidden_at_first(opened: Open, tmp_path: Path) -> None:
    """Nodes that are not decided on are one click away; with nothing kept a layer is told of."""
    folder = run_folders.write_run(tmp_path, NAMES, [])
    told = json.loads((folder / LAYERS).read_text())
    told["layers"][0].update(candidate=None, exclusion=Exclusion.CONSTANT)
    (folder / LAYERS).write_text(json.dumps(told))
    page = opened(write_report(folder))
    expect(page.locator("#detail h3")).to_have_text("Op_1")
    expect(page.locator("#shown")).to_have_text("79 of 80 nodes")
    page.get_by_role("button", name="not decided on 1").click()
    expect(page.locator("#shown")).to_have_text("80 of 80 nodes")


def test_a_report_without_any_layer_has_no_list(opened: Open, tmp_path: Path) -> None:
    """Nothing is kept and no list of all layers was written: the section is left out."""
    folder = run_folders.write_run(tmp_path, NAMES, [])
    (folder / LAYERS).unlink()
    expect(opened(write_report(folder)).locator("#layers")).to_have_count(0)


def test_patterns_come_before_layers(opened: Open, report: Path) -> None:
    """Why begins with a table of what the kept layers are, with the cause."""
    page = opened(report)
    rows = page.locator("#groups tbody tr")
    assert 1 <= rows.count() <= 3
    expect(rows.first).to_contain_text("overflow")
    expect(page.locator("#groups th")).to_contain_text(["What", "Layers", "Why", "without one"])


def test_layers_of_a_module_with_one_reason_share_a_row(opened: Open, tmp_path: Path) -> None:
    """What one writes the next reads; another figure, or another module, has a row of its own."""
    folder = run_folders.write_run(tmp_path, NAMES, [0, 1, 2, 10])
    evidence = ("output reaches 2e5", "input reaches 2e5", "output reaches 3e5")
    causes = [
        Diagnosis(layer=NAMES[place], cause=Cause.OVERFLOW, evidence=said)
        for place, said in zip((0, 1, 2, 10), (*evidence, evidence[2]), strict=True)
    ]
    result = run_folders.result_of(NAMES, [0, 1, 2, 10], diagnosis=causes)
    (folder / RESULT).write_text(result.to_text())
    rows = opened(write_report(folder)).locator("#kept tbody tr")
    for row, names in enumerate((["Op_0", "Op_1"], ["Op_2"], ["Op_10"])):
        expect(rows.nth(row).get_by_role("button")).to_have_text(names)
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("the answer without one of them fails")


def test_what_says_nothing_is_left_out(opened: Open, tmp_path: Path) -> None:
    """One cause is no filter, untried drops are no column, advice for all kept names none."""
    folder = run_folders.write_run(tmp_path, NAMES, KEPT)
    untested = Certificate(minimal=False, checked=[], unchecked=[NAMES[i] for i in KEPT])
    result = run_folders.result_of(NAMES, KEPT, certificate=untested)
    (folder / RESULT).write_text(result.to_text())
    kept = [NAMES[i] for i in KEPT]
    advice = [
        Advice(id=title, title=title, text="Do it.", layers=layers, evidence="")
        for title, layers in (("All", kept), ("Some", kept[1:]))
    ]
    (folder / DIAGNOSIS).write_text(Findings(low="fp16", advice=advice).to_text())
    page = opened(write_report(folder))
    expect(page.locator("#causes button")).to_have_count(0)
    expect(page.locator("#groups")).not_to_contain_text("without one")
    expect(page.locator("#advice article", has_text="All").get_by_role("button")).to_have_count(0)
    some = page.locator("#advice article", has_text="Some").get_by_role("button")
    expect(some).to_have_text(["norm/Op_12", "mlp/Op_47"])


def test_the_tree_is_used_by_keyboard(opened: Open, report: Path) -> None:
    """Arrows open modules and move, the active row is announced, its layer is told."""
    page = opened(report)
    tree = page.locator("#tree")
    tree.focus()
    page.keyboard.press("Home")
    active = page.locator("#tree .row[aria-selected=true]")
    expect(active.locator(".label")).to_have_text("stages.0")
    expect(tree).to_have_attribute("aria-activedescendant", "row-0")
    page.keyboard.press("ArrowLeft")
    expect(active).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Enter")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#detail h3")).to_have_text("Op_1")
    page.keyboard.press("ArrowLeft")
    expect(active.locator(".label")).to_have_text("norm")
    page.keyboard.press("End")
    expect(active.locator(".label")).to_have_text("blocks.3")


def test_every_control_is_reached_by_tab_and_shows_it(opened: Open, report: Path) -> None:
    """Tab goes through links, buttons, fields and lists, each with a visible outline."""
    page = opened(report)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(f"document.activeElement === document.body || {outline} !== 'none'")
    assert {"print", "theme", "find", "fold", "tree", "state-1", "A", "BUTTON"} <= reached


def test_a_layer_tells_what_is_known_of_it(opened: Open, report: Path) -> None:
    """Cause, sensitivity, proof, engine, neighbours, figures: from the kept list by one click."""
    page = opened(report)
    page.locator("#kept").get_by_role("button", name="Op_47").click()
    detail = page.locator("#detail")
    expect(detail.locator("h3")).to_have_text("Op_47")
    for text in (
        *("underflow: evidence of underflow", "kept: FP32", "141000"),
        "output y, where NaN or Inf come out; the way there, with the error",
        "Op_47not finiteOp_480.13",
        "forecast error 0.05 when it alone runs FP16, all else high (5 × the tolerance); rank 1",
        *("the answer without it fails: error 0.03, 3 × the tolerance", "honoured: its constants"),
    ):
        expect(detail).to_contain_text(text)
    detail.get_by_role("button", name="Op_46").click()
    expect(detail.locator("h3")).to_have_text("Op_46")
    expect(detail).to_contain_text("low: FP16")


def test_a_layer_of_a_ladder_tells_of_each_type(opened: Open, tmp_path: Path) -> None:
    """Why not FP16 and why not INT8, each with its histogram; borderline ones say their share."""
    folder = run_folders.write_run(tmp_path, NAMES, KEPT)
    counts = {"inputs": [5, 90, 5], "outputs": [], "weights": [1, 0, 2]}
    scaled = Histogram(lowest_exponent=-3, scaled=True, counts=counts)
    half = run_folders.finding(NAMES[3])
    eighth = replace(
        half, low="int8", cause=Cause.OUTLIERS, figures={"scale": 0.5}, histogram=scaled
    )
    near = replace(
        half,
        layer=NAMES[0],
        kept=False,
        low="int8",
        cause=Cause.CLIPPING,
        figures={"share": 0.34},
    )
    told = Findings(low="int8", layers=[half, eighth, near])
    (folder / DIAGNOSIS).write_text(told.to_text())
    page = opened(write_report(folder))
    expect(page.locator("#kept tbody tr").first).to_contain_text("FP16")
    borderline = page.locator("#borderline")
    for text in ("34 %", "INT8", "clipping"):
        expect(borderline).to_contain_text(text)
    page.locator("#kept tbody tr").first.get_by_role("button").click()
    detail = page.locator("#detail")
    for text in ("Why not FP16", "overflow: so", "Why not INT8", "outliers: so"):
        expect(detail).to_contain_text(text)
    expect(detail.locator(".chart")).to_have_count(1)
    expect(detail.locator(".chart canvas")).to_have_count(1)
    expect(detail).to_contain_text("Magnitudes of its values, against INT8")
    limits = page.evaluate(
        "echarts.getInstanceByDom(document.querySelector('#detail .chart'))"
        ".getOption().series[0].markLine.data.map((line) => line.name)"
    )
    assert ["127", "½"] == limits


def test_causes_and_phases_are_filtered(opened: Open, report: Path) -> None:
    """The kept list follows the chips of causes, the trials those of phases."""
    page = opened(report)
    page.get_by_role("button", name="overflow 2").click()
    expect(page.locator("#kept tbody tr")).to_have_count(1)
    page.locator("#search summary").first.click()
    before = page.locator("#search details").first.locator("tbody tr").count()
    page.get_by_role("button", name="preflight 2").click()
    expect(page.locator("#search summary").first).to_have_text(f"{before - 2} trials as a table")
    page.get_by_role("button", name="ranking 80").click()
    expect(page.locator("#search summary").first).to_have_text(f"{before + 78} trials as a table")


LATER = "window.setTimeout = (act) => { window.later = act; }"
"""What would happen after two seconds happens when it is asked for."""


def test_exports_are_copied_with_one_click(opened: Open, report: Path) -> None:
    """The clipboard holds the file's text, the button says so, and so does the live region."""
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#copies article h3").first).to_have_text("model.mixed.onnx")
    card = page.locator("#copies article", has_text="trtexec --layerPrecisions")
    page.evaluate(LATER)
    card.get_by_role("button").first.click()
    expect(card.get_by_role("button", name="Copied")).to_be_focused()
    expect(page.locator("#said")).to_have_text("Copied to the clipboard")
    page.evaluate("later()")
    expect(card.get_by_role("button", name="Copied")).to_have_count(0)
    expect(page.locator("#said")).to_be_empty()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert (report.parent / LAYER_PRECISIONS).read_text() == copied


def test_without_a_clipboard_the_selection_is_copied(opened: Open, report: Path) -> None:
    """Where the page may not write the clipboard, the older way copies, and leaves no trace."""
    page = opened(report, permissions=["clipboard-read"])
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    page.evaluate(LATER)
    page.locator("#prints").get_by_role("button", name="Copy as JSON").click()
    expect(page.locator("#prints button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert run_folders.FINGERPRINT == json.loads(copied)
    assert 0 == page.locator("textarea").count()
