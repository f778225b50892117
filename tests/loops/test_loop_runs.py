"""Runs of the whole tool that judge a loop: what holds after N steps, and every way to the end."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
from loop_models import DECODE, DENOISE, chaos, chaos_samples, write_examples
from models import parse, save
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, PrecisionBisectError, UsageError
from precision_bisect.runs.monitoring.events import Event, TrialFinished
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import GOLDEN_OUTPUTS, RUN_SCRIPT
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.trial import Phase, Proposal, SampleSet

DOCUMENT = Path(__file__).parents[2] / "docs" / "comparators.md"
STEPS = 10
LOOP = {"steps": STEPS, "feed": ["next:x"]}
TOLERANCE = 5e-3


def search(model: Path, out: Path, **options: Any) -> Result:
    """Return what a search of the logistic map by absolute errors comes to."""
    defaults: dict[str, Any] = {
        "inputs": chaos_samples(),
        "atol": TOLERANCE,
        "backend": "emulated",
        "copies": 4,
        "isolate": "never",
    }
    return precision_bisect.find(model, out=out, **{**defaults, **options})


def written_loop(folder: Path) -> str:
    """Return a script and a function that runs ten steps."""
    script = folder / "loop.py"
    script.write_text(
        "def ten(run, inputs):\n"
        "    for _ in range(10):\n"
        "        outputs = run(inputs)\n"
        "        inputs = {'x': outputs['next']}\n"
        "    return outputs\n"
    )
    return f"{script}:ten"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the logistic map."""
    return save(chaos(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def looped(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return a finished run of ten steps."""
    return search(model, tmp_path_factory.mktemp("runs") / "looped", **LOOP)


def test_single_steps_hold_and_ten_do_not(model: Path, looped: Result, tmp_path: Path) -> None:
    """Issue 52's case: FP16 is right in each step alone, and wrong at the end of the loop."""
    single = search(model, tmp_path / "single")
    assert (Status.NOTHING_TO_KEEP, None) == (single.status, single.loop)
    assert (Status.FOUND, True) == (looped.status, 0 < len(looped.kept) < looped.candidates)
    assert looped.error is not None and looped.error <= TOLERANCE
    steps = looped.loop
    assert steps is not None and STEPS == steps.steps
    assert (STEPS, STEPS) == (len(steps.errors), len(steps.all_low))
    assert steps.all_low[0] <= TOLERANCE < steps.all_low[-1]
    assert max(steps.errors) <= TOLERANCE
    assert f"judged after {STEPS} steps; at step 1, 2, 3, 5, 10: error" in steps.words


def test_steps_say_whose_errors_they_are(model: Path, looped: Result, tmp_path: Path) -> None:
    """Of many samples the first tell them, and the worst of the answer may be of another one."""
    many = search(model, tmp_path / "run", inputs=chaos_samples(5), **LOOP)
    assert many.loop is not None and looped.loop is not None
    assert (4, 0) == (many.loop.samples, looped.loop.samples)
    assert "; of the first 4 samples at step 1, 2, 3, 5, 10: error" in many.loop.words


def test_single_steps_fail_and_the_end_holds(tmp_path: Path) -> None:
    """A sampler forgets: what is lost in the noise of early steps is gone in the picture."""
    write_examples(tmp_path)
    options: dict[str, Any] = {
        "inputs": tmp_path / "denoiser-inputs",
        "atol": 1e-2,
        "backend": "emulated",
        "copies": 2,
        "steps": STEPS,
        "feed": DENOISE,
    }
    end = precision_bisect.find(tmp_path / "denoiser.onnx", out=tmp_path / "end", **options)
    assert Status.NOTHING_TO_KEEP == end.status
    assert end.loop is not None and end.loop.errors[0] > 1e-2 > end.loop.errors[-1]
    each = precision_bisect.find(
        tmp_path / "denoiser.onnx", out=tmp_path / "each", each_step=True, **options
    )
    assert (Status.FOUND, True) == (each.status, bool(each.kept))
    assert each.loop is not None and max(each.loop.errors) <= 1e-2


def test_a_decoder_is_judged_with_its_cache(tmp_path: Path) -> None:
    """Ids by argmax, positions, and keys and values that grow: nothing is written by hand."""
    write_examples(tmp_path)
    result = precision_bisect.find(
        tmp_path / "decoder.onnx",
        inputs=tmp_path / "decoder-inputs",
        atol=0.1,
        backend="emulated",
        copies=2,
        steps=6,
        feed=DECODE,
        out=tmp_path / "run",
    )
    assert result.status in (Status.FOUND, Status.NOTHING_TO_KEEP)
    assert result.loop is not None and 6 == len(result.loop.errors)
    assert all(target.passed is not None for target in result.other_targets)
    assert result.error is not None and result.error <= 0.1


def test_the_user_may_write_the_loop(model: Path, looped: Result, tmp_path: Path) -> None:
    """A function of a script that does what the flags do has the same answer and errors."""
    own = search(model, tmp_path / "own", loop=written_loop(tmp_path))
    assert (looped.kept, looped.error) == (own.kept, own.error)
    assert own.loop is not None and looped.loop is not None
    assert (None, "function") == (own.loop.steps, own.loop.judged)
    assert looped.loop.errors == own.loop.errors
    object_of_python = search(model, tmp_path / "python", loop=_ten)
    assert looped.kept == object_of_python.kept


def test_a_check_that_is_a_loop(model: Path, tmp_path: Path) -> None:
    """`--check loop.py` is what issue 52 calls it; without a function `loop` it is refused."""
    script = tmp_path / "loop.py"
    script.write_text("def loop(run, inputs):\n    return run({'x': run(inputs)['next']})\n")
    result = search(model, tmp_path / "run", check=str(script))
    assert result.loop is not None and 2 == len(result.loop.errors)
    script.write_text("def other(run, inputs):\n    return run(inputs)\n")
    with pytest.raises(UsageError, match="names no function"):
        search(model, tmp_path / "refused", check=str(script), atol=None)


def _ten(run: Any, inputs: Any) -> Any:
    outputs = None
    for _ in range(STEPS):
        outputs = run(inputs)
        inputs = {"x": outputs["next"]}
    return outputs


def test_the_documented_sampler_runs(tmp_path: Path) -> None:
    """The function of the page is a loop as it stands: three steps of a schedule."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    script = tmp_path / "sampler.py"
    script.write_text(next(block for block in blocks if "def denoise" in block))
    text = """(float[8] latent, float[1] t) => (float[8] noise) <float k = {1e-3}> {
      level = Mul(t, k) mixed = Mul(latent, level) noise = Tanh(mixed) }"""
    samples = [{"latent": np.linspace(-2, 2, 8, dtype=np.float32), "t": np.ones(1, np.float32)}]
    result = search(
        save(parse(text), tmp_path), tmp_path / "run", inputs=samples, loop=f"{script}:denoise"
    )
    assert Status.NOTHING_TO_KEEP == result.status
    assert result.loop is not None and 3 == len(result.loop.errors)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("    return 1 / 0", "loop.py:own failed: division by zero"),
        ("    return 3.0", "loop.py:own returned int|returned float, and not the outputs next"),
        ("    return {'x': inputs['x']}", "returned x, and not the outputs next; return a dict"),
        ("    return {'next': inputs['x']}", r"own never calls run; call run\(inputs\) for each"),
        (
            "    return run({})",
            "in call 1 of run in loop.py:own: .*; check what the function gives",
        ),
        ("    return run(5)", "loop.py:own failed: run takes a dict"),
        ("    run(inputs)\n    return {'next': 'a'}", "returned str32 for 'next', and the model"),
        ("    run(inputs)\n    return {'next': [[1], [2, 3]]}", "returned object for 'next'"),
        (
            "    return {'next': run(inputs)['next'] > 0}",
            "returned bool for 'next', and the model",
        ),
        (
            "    import random\n    return {'next': run(inputs)['next'] + random.random()}",
            "loop.py:own gives other outputs each time: .*; fix its seed",
        ),
    ],
)
def test_a_loop_that_fails_is_one_line(model: Path, tmp_path: Path, body: str, why: str) -> None:
    """A script of the user's may do anything; nothing of it is a traceback."""
    script = tmp_path / "loop.py"
    script.write_text(f"def own(run, inputs):\n{body}\n")
    with pytest.raises(PrecisionBisectError, match=why):
        search(model, tmp_path / "run", loop=f"{script}:own")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"loop": "own"}, "the function of --loop makes of finite outputs; mend it"),
        (
            {"loop": "feeds"},
            "in call 2 of the loop, born in .*; mend the model, the inputs or the f",
        ),
        ({"steps": 4, "feed": ["y:x"]}, "in step 3 of the loop, born in Log .* or --feed first"),
    ],
)
def test_nan_of_a_reference_is_looked_for_in_its_step(
    tmp_path: Path, how: dict[str, Any], why: str
) -> None:
    """The first step may be as good as any: what it is fed later is not."""
    (tmp_path / "loop.py").write_text(
        "def own(run, inputs):\n    return {'y': run(inputs)['y'] * float('nan')}\n"
        "def feeds(run, inputs):\n    run(inputs)\n    return run({'x': 0 * inputs['x']})\n"
    )
    if "loop" in how:
        how = {"loop": f"{tmp_path / 'loop.py'}:{how['loop']}"}
    text = (
        "(float[4] x) => (float[4] y) <float one = {1}> { l = Log(x) a = Abs(l) y = Sub(a, one) }"
    )
    start = [{"x": np.full(4, np.exp(np.exp(1)), np.float32)}]  # then about 1.7, then below 0
    path = save(parse(text), tmp_path)
    result = search(path, tmp_path / "run", inputs=start, **how)
    assert re.search(why, result.message or "")


def test_children_run_the_loop_as_well(model: Path, looped: Result, tmp_path: Path) -> None:
    """Trials in processes of their own, two at a time: the same answer, the same errors."""
    there = search(model, tmp_path / "run", isolate="always", workers=2, **LOOP)
    assert (looped.kept, looped.error) == (there.kept, there.error)
    by_script = search(model, tmp_path / "script", isolate="always", loop=written_loop(tmp_path))
    assert (looped.kept, looped.error) == (by_script.kept, by_script.error)


def test_the_loop_is_part_of_what_a_run_is(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of ten steps goes on with ten steps, and with no other number."""
    samples = tmp_path / "inputs"
    samples.mkdir()
    for number, sample in enumerate(chaos_samples()):
        np.savez(samples / f"{number}.npz", x=sample["x"])
    flags = [str(model), "--inputs", str(samples), "--atol", str(TOLERANCE), "--copies", "4"]
    flags += ["--backend", "emulated", "--out", str(tmp_path / "run"), "--feed", "next:x", "-q"]
    assert ExitCode.BUDGET == main([*flags, "--steps", "10", "--max-trials", "3"])
    capsys.readouterr()
    assert ExitCode.USAGE == main([*flags, "--steps", "9", "--resume"])
    said = capsys.readouterr().err
    assert "--steps was 10, now 9" in said and 1 == said.count("\n")
    assert ExitCode.OK == main([*flags, "--steps", "10", "--resume"])
    assert ExitCode.OK == main(["show", str(tmp_path / "run"), "-v"])
    assert "judged after 10 steps" in capsys.readouterr().out


def test_the_exported_script_runs_the_loop(looped: Result) -> None:
    """What is stored are first inputs and the end: the script on the target loops by itself."""
    assert looped.out is not None
    recheck = looped.deployment.recheck if looped.deployment else None
    assert recheck is not None and not recheck.refutes
    assert looped.deployment is not None and looped.deployment.polygraphy is None
    out = looped.out / "judged.json"
    command = [
        sys.executable,
        str(looped.out / RUN_SCRIPT),
        "--provider",
        "cpu",
        "--json",
        str(out),
    ]
    subprocess.run(command, check=False, capture_output=True)
    told = json.loads(out.read_text())
    # The CPU computes FP16 in FP32, so the errors are those of FP32 after ten steps.
    assert "computes FP16 and BF16 in FP32" in told["message"]
    assert told["errors"]["next"] < TOLERANCE
    text = (looped.out / RUN_SCRIPT).read_text()
    (looped.out / RUN_SCRIPT).write_text(text.replace("'steps': 10", "'steps': 3"))
    subprocess.run(command, check=False, capture_output=True)
    (looped.out / RUN_SCRIPT).write_text(text)
    assert json.loads(out.read_text())["errors"]["next"] > 0.1
    assert (looped.out / GOLDEN_OUTPUTS).is_file()


def test_trtexec_has_no_loop(looped: Result, model: Path, tmp_path: Path) -> None:
    """Neither over ssh nor from a folder: it runs each sample once, and the refusal says so."""
    assert looped.out is not None
    arguments = ["target", str(model), "--plan", str(looped.out), "--write", str(tmp_path / "t")]
    assert ExitCode.USAGE == main(arguments)
    with pytest.raises(UsageError, match="trtexec runs each sample once"):
        search(
            model,
            tmp_path / "run",
            backend="remote",
            engine=precision_bisect.EngineSettings(backend_options={"host": "board"}),
            **LOOP,
        )


def test_trials_tell_the_steps_of_both_ends_alone(model: Path, tmp_path: Path) -> None:
    """Errors by step cost two loops more, so the many trials between have none."""
    trials: list[Proposal] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrialFinished) and not event.recalled:
            trials.extend([event.proposal] if event.outcome.evidence.by_step else [])

    search(model, tmp_path / "run", observer=watch, **LOOP)
    assert {Phase.PREFLIGHT, Phase.RECHECK} == {proposal.phase for proposal in trials}
    assert len(trials) <= 6


def test_few_loops_rank() -> None:
    """A forecast of a loop costs N inferences a sample, so that two samples have to do."""
    samples = [{"x": np.full(1, n, np.float32)} for n in range(8)]
    sets = SampleSets(feeds=samples, pool=range(8), reference=samples)
    assert [*range(8)] == [*sets.numbers(SampleSet.RANKING)]
    in_loop = replace(sets, steps=samples[:1])
    assert ([0, 4], [*range(8)]) == (
        [*in_loop.numbers(SampleSet.RANKING)],
        [*in_loop.numbers(SampleSet.JUDGED)],
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"steps": 2}, "steps=2 without feed would run the same step again"),
        (
            {"feed": ["next:x"]},
            "feed and each_step=True need steps; give steps N, 2 or more",
        ),
        ({"steps": 2, "feed": ["next:x"], "loop": "a.py:b"}, "loop runs all steps itself"),
        ({"steps": 0}, "steps=0 is below 1|steps 0 is below 1"),
        ({"loop": "a.py"}, "names no function"),
        ({"loop": "nowhere.py:f"}, "no such script"),
        ({"steps": 2, "feed": "next:x"}, "feed cannot be 'next:x'"),
    ],
)
def test_options_that_clash_are_refused(
    model: Path, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    """Before any work, in one line."""
    with pytest.raises(UsageError, match=why):
        search(model, tmp_path / "run", **options)
