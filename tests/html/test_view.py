"""What the report takes from a run folder, finished or not, ours or odd."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_folders
from precision_bisect.errors import RunFolderError
from precision_bisect.explaining.diagnosis.findings import Findings, Histogram
from precision_bisect.layer_table import Exclusion
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.runfolder import DIAGNOSIS, LAYERS, LEDGER, RESULT, STATUS
from precision_bisect_reports.html.page import embedded, page, write_report
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import FIXED, FOLLOWER, OPEN, RUNS_HIGH, RUNS_LOW, view_of

LAYERS_10 = run_folders.names(10)


def view(folder: Path) -> dict[str, Any]:
    """Return the view of a run folder."""
    return view_of(read_source(folder), folder)


@pytest.mark.parametrize(
    ("status", "lead", "remark"),
    [
        (Status.FOUND, "", "2 failed"),
        (Status.NOTHING_TO_KEEP, "", "2 failed"),
        (Status.BUDGET_EXHAUSTED, "2 failed", None),
    ],
)
def test_what_became_of_an_earlier_answer_is_a_remark(
    tmp_path: Path, status: Status, lead: str, remark: str | None
) -> None:
    """It does not stand with the headline of an answer; why a run was cut short does."""
    run_folders.write_run(tmp_path, LAYERS_10, [2, 5])
    result = run_folders.result_of(LAYERS_10, [2, 5], status=status)
    (tmp_path / RESULT).write_text(result.to_text())
    run_folders.write_status(tmp_path, state="finished", message="2 failed")
    answer = view(tmp_path)["answer"]
    assert lead == answer["message"]
    assert [remark] * bool(remark) == [each for each in answer["remarks"] if "failed" in each]


def test_every_layer_has_its_state_and_type(tmp_path: Path) -> None:
    """Kept layers have the high type, the others the low one."""
    layers = view(run_folders.write_run(tmp_path, LAYERS_10, [2, 5]))["layers"]
    assert [RUNS_HIGH if i in (2, 5) else RUNS_LOW for i in range(10)] == layers["state"]
    assert ["fp32" if i in (2, 5) else "fp16" for i in range(10)] == layers["precision"]


def test_followers_and_pinned_layers_are_told_apart(tmp_path: Path) -> None:
    """What moves values follows; what has no low form stays high, with its reason."""
    run_folders.write_run(tmp_path, LAYERS_10, [2])
    told = json.loads((tmp_path / LAYERS).read_text())
    reasons = (Exclusion.FOLLOWER, Exclusion.RANDOM)
    for row, reason in zip(told["layers"][:2], reasons, strict=True):
        row.update(candidate=None, exclusion=reason)
    (tmp_path / LAYERS).write_text(json.dumps(told))
    layers = view(tmp_path)["layers"]
    assert [FOLLOWER, FIXED, RUNS_HIGH, RUNS_LOW] == layers["state"][:4]
    assert reasons[1] == layers["reason"]["texts"][layers["reason"]["at"][1]]


def test_sensitivity_is_the_error_of_a_layer_alone(tmp_path: Path) -> None:
    """Each ranking trial gives the error of the one layer that it ran low."""
    found = view(run_folders.write_run(tmp_path, LAYERS_10, [2]))["sensitivity"]
    assert list(range(10)) == found["layer"]
    assert [1e-6, 2e-6, 0.05] == found["error"][:3]
    assert [1] * 10 == found["together"]


def test_the_curve_has_its_points_culprits_and_words(tmp_path: Path) -> None:
    """The view has what result.json has, and the screen's words; a run without is empty."""
    folder = run_folders.write_run(tmp_path, LAYERS_10, [2, 5])
    without = view(folder)["curve"]
    assert ("", [], [], None) == tuple(
        without[key] for key in ("words", "points", "culprits", "deploy")
    )
    assert not without["times"].plans
    curve = view(run_folders.write_curve(folder, LAYERS_10, [2, 5]))["curve"]
    assert [0, 1, 2, 4] == [point["kept_count"] for point in curve["points"]]
    assert "inf" == curve["points"][0]["error_median"]
    assert [LAYERS_10[2], LAYERS_10[5]] == [each.layer for each in curve["culprits"]]
    assert curve["words"].startswith("2 layers break FP16 (overflow)")


def test_trials_are_columns(tmp_path: Path) -> None:
    """Every trial of the ledger is there, in order, with an infinite error as text."""
    trials = run_folders.searched(10, [2, 5])
    columns = view(run_folders.write_run(tmp_path, LAYERS_10, [2, 5]))["searches"][0]["trials"]
    assert [len(each.proposal.plan) for each in trials] == columns["kept"]
    assert "inf" == columns["error"][1]
    texts, places = columns["reason"]["texts"], columns["reason"]["at"]
    assert [each.proposal.reason for each in trials] == [texts[at] for at in places]
    phases = [columns["phase"]["texts"][at] for at in columns["phase"]["at"]]
    assert [each.proposal.phase.value for each in trials] == phases


def test_a_run_that_goes_on_shows_its_best_plan(tmp_path: Path) -> None:
    """Read while its ledger is open: the smallest plan that passed, and its layers."""
    run_folders.write_layers_file(tmp_path, LAYERS_10)
    run_folders.write_status(tmp_path)
    trials = run_folders.searched(10, [2, 5])
    with open_ledger(tmp_path / LEDGER, run_folders.FINGERPRINT, resume=False) as ledger:
        for each in trials:
            ledger.start(each.proposal)
            ledger.finish(each.proposal, each.outcome)
        seen = view(tmp_path)
    assert "Best so far: 2 of 10 layers FP32, the rest FP16" == seen["answer"]["title"]
    assert [2, 5] == [i for i, state in enumerate(seen["layers"]["state"]) if state == RUNS_HIGH]
    assert seen["kept"] == []


def test_a_former_answer_does_not_pass_for_one_of_a_resumed_run(tmp_path: Path) -> None:
    """While a resumed run searches, the result of its former ending is not shown."""
    run_folders.write_run(tmp_path, LAYERS_10, [2, 5])
    run_folders.write_status(tmp_path)
    assert "Not finished" == view(tmp_path)["answer"]["badge"]


def test_before_the_first_pass_everything_is_open(tmp_path: Path) -> None:
    """A search without a passing plan decides on no layer."""
    run_folders.write_ledger(tmp_path, [run_folders.searched(10, [2])[1]])
    run_folders.write_layers_file(tmp_path, LAYERS_10)
    seen = view(tmp_path)
    assert "No answer yet" == seen["answer"]["title"]
    assert {OPEN} == set(seen["layers"]["state"])


def test_a_ladder_shows_each_rung_and_each_search(tmp_path: Path) -> None:
    """Layers have the type of their rung; each folder of a rung is a search of its own."""
    run_folders.write_ladder(tmp_path, LAYERS_10)
    seen = view(tmp_path)
    assert "Of 10 layers 1 must be FP32, 1 must be FP16, 8 run INT8" == seen["answer"]["title"]
    assert ["int8", "fp16", "fp32", "int8"] == seen["layers"]["precision"][:4]
    titles = ["search 1: fp16", "search 2: int8", "search 10: int8"]
    assert titles == [search["title"] for search in seen["searches"]]


def test_without_a_list_of_layers_the_kept_ones_are_shown(tmp_path: Path) -> None:
    """A run folder without layers.json makes a report of what result.json names."""
    run_folders.write_run(tmp_path, LAYERS_10, [2, 5])
    (tmp_path / LAYERS).unlink()
    layers = view(tmp_path)["layers"]
    assert [False, [LAYERS_10[2], LAYERS_10[5]]] == [layers["complete"], layers["name"]]


def test_a_diagnosis_is_joined_by_layer(tmp_path: Path) -> None:
    """Entries of known layers are taken; what counts nothing, and lists, are not shown."""
    run_folders.write_run(tmp_path, LAYERS_10, [2])
    found = run_folders.finding(
        LAYERS_10[2],
        figures={"index": [1]},
        histogram=Histogram(lowest_exponent=-3, counts={"inputs": [1, 2], "outputs": [0]}),
    )
    told = Findings(low="fp16", layers=[found, replace(found, layer="unknown")])
    (tmp_path / DIAGNOSIS).write_text(told.to_text())
    (seen,) = view(tmp_path)["diagnosis"]
    assert (2, "overflow", {}) == (seen["layer"], seen["cause"], seen["figures"])
    expected = {"lowest_exponent": -3, "scaled": False, "counts": {"inputs": [1, 2]}}
    assert expected == seen["histogram"]


@pytest.mark.parametrize("name", [RESULT, STATUS, LAYERS, DIAGNOSIS])
@pytest.mark.parametrize("text", ["{", "[]", '{"status": "found", "layers": [{"name": 3}]}'])
def test_foreign_files_are_one_line(tmp_path: Path, name: str, text: str) -> None:
    """An error says which file of the folder holds something else."""
    run_folders.write_run(tmp_path, LAYERS_10, [2])
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError) as error:
        write_report(tmp_path)
    assert str(tmp_path / name) in error.value.one_line()


def test_foreign_values_are_one_line_or_text(tmp_path: Path) -> None:
    """NaN as a figure is a text; half a surrogate pair in a name is replaced."""
    folder = run_folders.write_run(tmp_path, LAYERS_10, [2])
    (folder / LAYERS).write_text((folder / LAYERS).read_text().replace("big", "\\ud800"))
    assert "?.onnx" in write_report(folder).read_text()
    (folder / RESULT).write_text((folder / RESULT).read_text().replace("0.008", "NaN"))
    assert '"error":"nan"' in write_report(folder).read_text()


def test_no_run_folder_is_one_line(tmp_path: Path) -> None:
    """A folder without a ledger is refused, and nothing is written to it."""
    with pytest.raises(RunFolderError, match="no run folder"):
        write_report(tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two reports of one run folder are equal, and so is that of a copy made elsewhere."""
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        run_folders.write_run(folder, LAYERS_10, [2, 5], timed=True)
    pages = [write_report(folder).read_bytes() for folder in (first, first, second)]
    assert 1 == len(set(pages))


def test_a_folder_that_cannot_be_written_to_is_reported_elsewhere(tmp_path: Path) -> None:
    """--out takes the report where the run folder is read-only, and leaves that as it was."""
    folder = run_folders.write_run(tmp_path / "run", LAYERS_10, [2])
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    try:
        assert write_report(folder, tmp_path / "page.html").is_file()
    finally:
        folder.chmod(0o755)
    assert before == sorted(folder.iterdir())


@given(text=st.text() | st.sampled_from(["</script>", "<!--<script>", "&lt;", "\u2028"]))
def test_embedded_data_is_nothing_but_data(text: str) -> None:
    """No text can end the data or be taken for markup, and every text comes back unchanged."""
    told = embedded({text: text})
    assert not re.search("[<>&\u2028\u2029]", told)
    assert {text: text} == json.loads(told)


def test_the_page_allows_no_request(tmp_path: Path) -> None:
    """The policy forbids everything but the scripts and the style of the page, by their hashes."""
    text = page(view(run_folders.write_run(tmp_path, LAYERS_10, [2])))
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert 1 == len(policy)
    assert policy[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[0] and "http" not in policy[0]
