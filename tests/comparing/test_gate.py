"""`--max-kept` and `--baseline` fail a run that keeps more than was agreed on."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import models
import tiny
from precision_bisect.commandline.main import main
from precision_bisect.runs.comparing.changes import Gate
from precision_bisect.runs.runfolder import RESULT
from run_folders import names, result_of


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that keeps 4 of 20 layers, made once."""
    folder = tmp_path_factory.mktemp("gate")
    tiny.search(tiny.write_model(folder / "m.onnx"), folder / "run", backend="emulated")
    return folder / "run"


def again(found: Path, *flags: str) -> int:
    """Run the same search from the command line, as far as the ledger does not know it yet."""
    model = str(found.parent / "m.onnx")
    out = ["--out", str(found.parent / "again"), "--resume", "--synthetic", "2"]
    return main([model, "--backend", "emulated", *out, *flags])


def with_kept(found: Path, kept: list[str], folder: Path) -> Path:
    """Write the result with another kept set."""
    fields = json.loads((found / RESULT).read_text())
    (folder / RESULT).write_text(json.dumps({**fields, "kept": kept}))
    return folder / RESULT


def test_what_the_baseline_keeps_passes(found: Path, tmp_path: Path) -> None:
    """The same set passes, and so does a larger baseline: the answer has shrunk."""
    assert 0 == again(found, "--baseline", str(found), "--max-kept", "4")
    larger = with_kept(found, [*tiny.KEPT, "n0_Abs"], tmp_path)
    assert 0 == again(found, "--baseline", str(larger))


def test_new_layers_are_named(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names them, also where the baseline keeps as many; the JSON stays whole."""
    other = with_kept(found, [*tiny.KEPT[:2], "n0_Abs", "n1_Tanh"], tmp_path)
    assert 1 == again(found, "--baseline", str(other), "--json")
    captured = capsys.readouterr()
    assert tiny.KEPT == json.loads(captured.out)["kept"]
    last = captured.err.splitlines()[-1]
    assert "precision-bisect: kept and not in the baseline: n13_Mul, n14_Sqrt" == last


def test_too_many_layers_are_counted(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The limit itself passes, one layer more does not."""
    assert 1 == again(found, "--max-kept", "3")
    assert "the answer keeps 4 layers, --max-kept is 3" in capsys.readouterr().err


def test_a_run_that_was_cut_off_keeps_its_own_code(found: Path, tmp_path: Path) -> None:
    """Exit code 3 says that the answer is not final; what it keeps so far decides nothing."""
    model, out = str(found.parent / "m.onnx"), str(tmp_path / "cut")
    limits = ["--max-trials", "5", "--max-kept", "0", "--strategy", "ddmin"]
    assert 3 == main([model, "--out", out, "--synthetic", "1", "--backend", "emulated", *limits])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-kept", "-1"], "--max-kept -1 is below 0"),
        (["--baseline", "."], "result.json does not exist"),
    ],
)
def test_bad_limits_end_before_the_search(
    flags: list[str], says: str, found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits for a search whose answer cannot be judged."""
    out = tmp_path / "run"
    assert 2 == main([str(found.parent / "m.onnx"), "--out", str(out), *flags])
    assert says in capsys.readouterr().err
    assert not out.exists()


def test_a_model_without_a_baseline_is_new(
    found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One warning, for GitHub, too; there is nothing yet that it could break."""
    assert 0 == again(found, "--baseline", "nowhere.json", "--github")
    out, err = capsys.readouterr()
    new = "there is no baseline nowhere.json: the answer is new"
    assert f"warning: {new}" in err
    assert f"::warning title=precision-bisect::{new}" in out + err


def test_services_are_told_of_a_single_run(
    found: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """JUnit has the counts, GitHub an annotation and a row of the summary; errors, too."""
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    flags = ["--junit", str(junit), "--github"]
    assert 1 == again(found, "--max-kept", "3", *flags)
    why = "the answer keeps 4 layers, --max-kept is 3"
    assert f"::error title=precision-bisect::{why}\n" in capsys.readouterr().err
    (case,) = ElementTree.parse(junit).getroot()
    failure = case.find("failure")
    assert failure is not None and why == failure.get("message")
    assert "4" in [each.get("value") for each in case.iter("property")]
    assert all(f"`{layer}`" in summary.read_text() for layer in tiny.KEPT)
    assert 0 == again(found, *flags)
    assert "::notice title=precision-bisect::m.onnx: found, 4 of 20" in capsys.readouterr().err
    assert 2 == again(found, "--reference", "nowhere", *flags)
    (case,) = ElementTree.parse(junit).getroot()
    assert case.find("error") is not None


def test_junit_writes_over_nothing_else(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a model nor a run's files nor what it cannot read: one line before the search."""
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    run = found.parent / "again"
    for path in (
        notes,
        found.parent / "m.onnx",
        run / "junit.xml",
        tmp_path,
        tmp_path / "a/b.xml",
    ):
        assert 2 == again(found, "--junit", str(path))
        assert "give --junit a new file, or one that it wrote before" in capsys.readouterr().err
    assert "mine" == notes.read_text()


def test_names_of_layers_are_no_commands_of_github(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Commands are off while names may begin a line, and on for our annotation."""
    body = "(float[1,4] x) => (float[1,4] y) <float k = {300}> {"
    body += "[first] a = Mul(x, k) [first2] b = Mul(a, k) [last] y = Div(b, k) }"
    proto = models.parse(body)
    proto.graph.node[1].name = "::error::there"
    path = models.save(proto, tmp_path)
    main([str(path), "--out", str(tmp_path / "run"), "--backend", "emulated", "--github"])
    lines = capfd.readouterr().err.splitlines()
    (stopped,) = (i for i, line in enumerate(lines) if line.startswith("::stop-commands::"))
    resumed = lines.index(f"::{lines[stopped].removeprefix('::stop-commands::')}::")
    said = [i for i, line in enumerate(lines) if line.lstrip().startswith("::")]
    assert stopped == said[0] and resumed == said[1] < said[-1]
    assert lines[said[-1]].startswith(("::notice title=precision-bisect", "::error title="))


def test_a_baseline_of_other_types_is_refused(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What FP16 keeps says nothing of what BF16 may keep."""
    model, out = str(found.parent / "m.onnx"), str(tmp_path / "run")
    assert 2 == main([model, "--low", "bf16", "--out", out, "--baseline", str(found)])
    assert "is of fp16 and fp32, this run of bf16 and fp32" in capsys.readouterr().err


def test_a_baseline_without_an_answer_is_refused(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that failed agreed on nothing."""
    fields = json.loads((found / RESULT).read_text())
    (tmp_path / RESULT).write_text(json.dumps({**fields, "kept": [], "status": "infeasible"}))
    assert 2 == again(found, "--baseline", str(tmp_path))
    assert "has no answer, its status is 'infeasible'" in capsys.readouterr().err


def test_long_lists_are_cut() -> None:
    """The line stays one, with the count of what it leaves out."""
    layers = names(100)
    (line,) = Gate(baseline=frozenset()).objections(result_of(layers, [*range(100)]))
    assert line.endswith(" and 80 more")
