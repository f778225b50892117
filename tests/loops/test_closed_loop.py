"""A closed loop by flags: what is fed into the next step, what is judged, what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from effort import examples
from loop_models import DECODE, cache, chaos, chaos_samples, write_examples
from models import load_text, save
from precision_bisect.backends.emulation.emulator import EmulatedEngine
from precision_bisect.errors import StepFailed, UsageError
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.load import load_model
from precision_bisect.judging.inputs.choose_loop import choose_loop
from precision_bisect.judging.inputs.closed_loop import Link, joined
from precision_bisect.judging.inputs.loops import PLAIN, CannotFeed, ClosedLoop, feeds_of
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, DroppedNan, Sample
from precision_bisect.search.engine_runs import outputs_of
from precision_bisect.trial import TrialStatus


def loop_of(model: Path, steps: int, feeds: Sequence[str], **further: Any) -> ClosedLoop:
    """Return the loop that flags ask for."""
    options = Options(model=model, steps=steps, feed=feeds, **further)
    loop = choose_loop(options, load_model(model))
    assert isinstance(loop, ClosedLoop)
    return loop


@given(start=arrays(np.float32, (64,), elements=st.floats(0, 1, width=32)))
@examples(15)
def test_one_step_is_a_plain_run(start: NDArray[np.float32], chaos_run: ReferenceSession) -> None:
    """Without a loop nothing changes: the very outputs of one inference."""
    plain = chaos_run.step({"x": start})
    np.testing.assert_array_equal(plain["next"], PLAIN(chaos_run.step, {"x": start})["next"])
    linked = ClosedLoop(1, (Link("next", "x"),))
    np.testing.assert_array_equal(plain["next"], linked(chaos_run.step, {"x": start})["next"])


@given(steps=st.integers(2, 12), seed=st.integers(0, 2**32 - 1))
@examples(15)
def test_a_loop_is_the_model_called_by_hand(
    steps: int, seed: int, chaos_run: ReferenceSession
) -> None:
    """An output goes into the input of the next step, as in anybody's own loop."""
    start = np.random.default_rng(seed).uniform(0, 1, 64).astype(np.float32)
    value = start
    for _ in range(steps):
        value = chaos_run.step({"x": value})["next"]
    outputs = ClosedLoop(steps, (Link("next", "x"),))(chaos_run.step, {"x": start})
    np.testing.assert_array_equal(value, outputs["next"])


@pytest.fixture(scope="module")
def chaos_run(tmp_path_factory: pytest.TempPathFactory) -> ReferenceSession:
    """Return a session of the logistic map."""
    folder = tmp_path_factory.mktemp("chaos")
    return ReferenceSession(load_model(save(chaos(), folder)), threads=1)


def test_a_cache_grows_by_its_new_places(tmp_path: Path) -> None:
    """A cache that the model gives whole is fed back; one place alone is put behind it."""
    whole = save(cache(), tmp_path)
    run = ReferenceSession(load_model(whole), threads=1).step
    sample: Sample = {
        "x": np.array([[0.5, -1.0]], np.float32),
        "past": np.zeros((1, 0, 2), np.float32),
    }
    loop = loop_of(whole, 4, ["y:x", "present:past"])
    outputs = loop(run, sample)
    assert (1, 4, 2) == outputs["present"].shape

    def new_place_alone(feed: Sample) -> Sample:
        outputs = run(feed)
        return {**outputs, "present": outputs["present"][:, -1:]}

    appended = loop_of(whole, 4, ["y:x", "present:past:append"])
    assert Link("present", "past", "append", 1) in appended.links
    np.testing.assert_array_equal(outputs["y"], appended(new_place_alone, sample)["y"])


def test_a_decoder_goes_on_with_its_own_words(tmp_path: Path) -> None:
    """Ids, positions and cache of each step are what a loop by hand has, prompt and all."""
    write_examples(tmp_path)
    run = ReferenceSession(load_model(tmp_path / "decoder.onnx"), threads=1).step
    sample = dict(np.load(tmp_path / "decoder-inputs/0.npz"))
    feed, words = sample, list[int]()
    outputs: Sample = {}
    for step in range(4):
        outputs = run(feed)
        words.append(int(outputs["logits"][0, -1].argmax()))
        feed = {
            "ids": np.array([[words[-1]]]),
            "positions": np.array([[sample["ids"].shape[1] + step]]),
            "past.key": outputs["present.key"],
            "past.value": outputs["present.value"],
        }
    loop = loop_of(tmp_path / "decoder.onnx", 4, DECODE)
    feeds = feeds_of(loop, run, [sample], [sample])
    assert words[:-1] == [int(later["ids"][0, 0]) for later in feeds[1:]]
    np.testing.assert_array_equal(outputs["logits"], loop(run, sample)["logits"])


def test_a_mask_grows_by_its_last_column() -> None:
    """An input that grows by itself repeats what it ends with."""
    seen: list[int] = []

    def run(feed: Sample) -> Sample:
        seen.append(feed["mask"].shape[1])
        return {"y": feed["mask"]}

    loop = ClosedLoop(3, (Link("", "mask", "append", 1),))
    outputs = loop(run, {"mask": np.array([[0, 1, 1]])})
    assert ([3, 4, 5], [0, 1, 1, 1, 1]) == (seen, outputs["y"][0].tolist())


def test_all_steps_stand_one_behind_the_other() -> None:
    """By their first axis; words behind a prompt along theirs; of a cache its end is all."""
    image = np.zeros((1, 3))
    prompt, word, grown = np.zeros((1, 5, 7)), np.ones((1, 1, 7)), np.zeros((1, 6, 2))
    steps = [
        {
            "image": image,
            "logits": prompt,
            "cache": grown[:, :5],
            "loss": np.float64(1),
        },
        {"image": image, "logits": word, "cache": grown, "loss": np.float64(2)},
    ]
    shapes = {name: array.shape for name, array in joined(steps).items()}
    assert {"image": (2, 3), "logits": (1, 6, 7), "cache": (1, 6, 2), "loss": (2,)} == shapes


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_breaks_in_a_step_is_not_hidden_by_the_next(value: float) -> None:
    """An ArgMax of NaN is a class like any other: the loop ends with the NaN."""
    logits = iter([np.ones((1, 4)), np.array([[0.0, value, 0, 0]]), np.ones((1, 4))])
    loop = ClosedLoop(3, (Link("logits", "ids", "argmax"),))
    outputs = loop(lambda _: {"logits": next(logits)}, {"ids": np.array([[1]])})
    assert not np.isfinite(outputs["logits"]).all()
    assert [1] == [len(array) for array in logits]


def test_a_dropped_nan_ends_the_loop() -> None:
    """Outputs that are finite on this machine alone are a failure in any step."""
    dropped = DroppedNan({"y": np.ones(1)}, ("pool",))
    steps = iter([dropped, {"y": np.ones(1)}])
    assert dropped is ClosedLoop(2, (Link("y", "x"),))(lambda _: next(steps), {"x": np.ones(1)})


def test_an_error_says_its_step(tmp_path: Path) -> None:
    """What does not fit in the second step names it."""
    path = load_text("(float[a] x) => (float[b] y) { y = Concat<axis = 0>(x, x) }", tmp_path).path
    loop = loop_of(path, 3, ["y:x"])

    def run(feed: Sample) -> Sample:
        if len(feed["x"]) > 1:
            raise RuntimeError("invalid dimensions")
        return {"y": np.ones(2, np.float32)}

    with pytest.raises(StepFailed, match="in step 2 of the loop: invalid dimensions"):
        loop(run, {"x": np.ones(1, np.float32)})


def test_what_cannot_be_fed_is_an_error_of_the_run() -> None:
    """A shape that depends on values is known in a step alone, and no traceback."""
    loop, sample = (
        ClosedLoop(3, (Link("new", "past", "append", 1),)),
        {"past": np.zeros((1, 0, 2))},
    )
    with pytest.raises(CannotFeed, match="an output cannot be fed: "):
        loop(lambda _: {"new": np.zeros((1, 1, 3))}, sample)
    engine = Wider()
    with pytest.raises(BackendFailure) as failure:
        outputs_of(engine, loop, [sample], 1)
    assert TrialStatus.RUN_FAILED == failure.value.outcome.status


class Wider(EmulatedEngine):
    """An engine whose output is wider than what it is put behind."""

    def __init__(self) -> None:
        super().__init__([], Plan.of(()))

    @property
    def ways(self) -> Sequence[EmulatedEngine]:
        return [self]

    def run(self, feed: Sample) -> Sample:
        return {"new": np.zeros((1, 1, 3))}


TYPES = """(float[1,4] x, float16[1,4] half, int64[1,"n"] ids, bool[1] on) =>
  (float[1,4] y, float16[1,4] z, float[1,2] other) {
  y = Tanh(x) z = Tanh(half) w = Cast<to = 1>(ids) s = ReduceMean<axes = [1]>(w)
  v = Cast<to = 1>(on) t = Add(s, v) other = Concat<axis = 1>(t, t) }"""


@pytest.mark.parametrize(
    ("feeds", "why"),
    [
        (["y"], "names no input; write --feed OUTPUT:INPUT"),
        (["nothing:x"], "names 'nothing', which is no output of the model; its outputs are y, z"),
        (["y:nothing"], "names 'nothing', which is no input of the model; its inputs are x, half"),
        (["x:x"], "names 'x', which is no output"),
        (["z:x"], "the output is float16 and the input float32; add a Cast to the model, or"),
        (["other:x"], r"the output is \(1, 2\) and the input \(1, 4\); feed an output of"),
        (["y:x:argmax"], "argmax feeds classes, and the input is float32"),
        (["y:x:append"], r"the input is \(1, 4\), which has no axis to grow along"),
        (["y:x:next"], "next counts an input on, and 'y' is an output; write --feed x:x:next"),
        (["on:on:next"], "bool has no next value"),
        (["x:x:next"], r"next gives one value, and the input is \(1, 4\); write the steps"),
        (["y:x:foo"], "has no HOW 'foo'; HOW is argmax, append or next"),
        (["*:x*:foo"], "has no HOW 'foo'"),
        (["y:x", "y:x:append"], "no axis to grow along"),
        (["*:*"], "names '\\*', which is no input of the model"),
    ],
)
def test_feeds_that_cannot_be_are_refused(tmp_path: Path, feeds: list[str], why: str) -> None:
    """Each with what to do: what an engine's loop would do with them nobody can say."""
    path = load_text(TYPES, tmp_path).path
    with pytest.raises(UsageError, match=why) as refused:
        loop_of(path, 2, feeds)
    assert refused.value.hint


def test_a_pattern_feeds_all_that_it_names(tmp_path: Path) -> None:
    """A cache without its input would stay as it was, and nobody would know."""
    text = "(float[2] past.0, float[2] past.2) => (float[2] now.0, float[2] now.1) "
    body = "{ now.0 = Tanh(past.0) now.1 = Tanh(past.2) }"
    model = load_text((text + body).replace(".", "_"), tmp_path).path
    with pytest.raises(UsageError, match="has no input 'past_1' for 'now_1'"):
        loop_of(model, 2, ["now_*:past_*"])
    assert (Link("now_1", "past_2"),) == loop_of(model, 2, ["now_*1:past_*2"]).links


def test_an_input_is_fed_once(tmp_path: Path) -> None:
    """Two outputs for one input leave open which."""
    path = load_text(
        "(float[2] x) => (float[2] y, float[2] z) { y = Tanh(x) z = Abs(x) }", tmp_path
    )
    with pytest.raises(UsageError, match="feeds 'x' twice"):
        loop_of(path.path, 2, ["y:x", "z:x"])


def test_names_may_hold_colons(tmp_path: Path) -> None:
    """Those of TensorFlow do."""
    model = chaos()
    model.graph.input[0].name = "x:0"
    for node in model.graph.node:
        node.input[:] = ["x:0" if name == "x" else name for name in node.input]
        node.output[:] = ["next:0" if name == "next" else name for name in node.output]
    model.graph.output[0].name = "next:0"
    loop = loop_of(save(model, tmp_path), 2, ["next:0:x:0"])
    assert (Link("next:0", "x:0"),) == loop.links


def test_feeds_of_steps_are_few_of_each_sample(chaos_run: ReferenceSession) -> None:
    """First and last steps are among them: values may grow on the way."""
    loop, samples = ClosedLoop(10, (Link("next", "x"),)), chaos_samples(4)
    feeds = feeds_of(loop, chaos_run.step, samples, samples, most=8)
    assert 8 == len(feeds)
    last = ClosedLoop(9, loop.links)(chaos_run.step, samples[3])["next"]
    np.testing.assert_array_equal(samples[3]["x"], feeds[6]["x"])
    np.testing.assert_array_equal(last, feeds[7]["x"])
