"""Backends that several threads use at a time, as `--workers` does."""

import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import pytest

import tiny
from models import load_text, normal, parse, save, with_weights
from patience import PATIENCE_S
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.backends.tensorrt.watch import private
from precision_bisect.graphs.graph import Names
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.machine.polygraphy_quiet import quiet
from precision_bisect.machine.user_scripts import running_script
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Honour

THREADS = 6
T = TypeVar("T")


def at_once(function: Callable[[int], T]) -> list[T]:
    """Return what a function comes to in threads that begin together, by their number."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> T:
        barrier.wait(PATIENCE_S)
        return function(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_polygraphy_is_quiet_until_the_last_thread_leaves() -> None:
    """Blocks that overlap are all silent, and leave the verbosity as it was."""
    from polygraphy.logger import G_LOGGER

    before = str(G_LOGGER.module_severity)
    leave = threading.Barrier(THREADS)

    def block(number: int) -> str:
        with quiet():
            time.sleep(0.01 * number)
            seen = str(G_LOGGER.module_severity)
            leave.wait(PATIENCE_S)
        return seen

    assert 1 == len(set(at_once(block)) - {before})
    assert before == str(G_LOGGER.module_severity)


def test_scripts_run_one_at_a_time(tmp_path: Path) -> None:
    """The standard output that a script's block replaces is the right one afterwards."""
    inside: list[int] = []

    def block(number: int) -> int:
        with running_script(tmp_path / f"{number}" / "script.py"):
            inside.append(number)
            time.sleep(0.005)
            return len(inside) - inside.index(number)

    out, path = sys.stdout, list(sys.path)
    assert [1] * THREADS == at_once(block)
    assert (out, path) == (sys.stdout, sys.path)


def test_names_are_given_once(tmp_path: Path) -> None:
    """Threads that wish for the same names get the same ones, all different from the model's."""
    names = Names(parse("(float[1] x) => (float[1] y) { y = Neg(x) }").graph)
    wishes = [f"wish{i}" for i in range(500)] + ["x", "y"]
    given = at_once(lambda number: [names(wish) for wish in wishes])
    assert all(given[0] == other for other in given)
    assert ["x_", "y_"] == given[0][-2:]
    assert len(wishes) == len(set(given[0]))


def test_typed_graphs_are_written_side_by_side(tmp_path: Path) -> None:
    """Each thread's file holds its own plan with its weights, and is gone afterwards."""
    weights = {"w": normal(64, 72), "v": normal(72, 64, seed=1)}
    text = "(float[1,64] x) => (float[1,64] y) { [a] a = MatMul(x, w) [b] y = MatMul(a, v) }"
    model = load_model(save(with_weights(parse(text), weights), tmp_path))
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    folder = TypedFolder(tmp_path / "typed")
    plans = [Plan.of(()), Plan.of((0,)), Plan.of((1,))] * 2

    def write(number: int) -> list[tuple[str, int]]:
        with folder.saved(writer.write(plans[number], guard_islands=False)) as file:
            proto = onnx.load(file)
            return sorted((t.name, int(t.data_type)) for t in proto.graph.initializer)

    sequential = [write(number) for number in range(THREADS)]
    assert sequential == at_once(write)
    assert ["weights.bin"] == [file.name for file in folder.path.iterdir()]


def test_profiles_of_sessions_that_open_together_do_not_meet(tmp_path: Path) -> None:
    """ONNX Runtime names them by the second."""
    model = load_text("(float[4] x) => (float[4] y) { y = Sigmoid(x) }", tmp_path)
    opener = Opener(providers=[CPU], profiles=tmp_path / "profile")

    def open_one(number: int) -> str:
        session = opener.open(model.path).session
        session.run(None, {"x": np.zeros(4, np.float32)})
        return str(session.end_profiling())

    assert THREADS == len(set(at_once(open_one)))


def test_the_emulator_serves_several_threads(tmp_path: Path) -> None:
    """One session gives each thread the outputs of its own plan."""
    model = load_model(tiny.write_model(tmp_path / "tiny.onnx"))
    backend = EmulatedBackend(model, threads=1)
    (sample,) = tiny.samples()
    plans = [Plan.of(range(n)) for n in range(len(tiny.STEPS) + 1)]

    def outputs(plan: Plan) -> bytes:
        (array,) = backend.build(plan).run(sample).values()
        return array.tobytes()

    alone = [outputs(plan) for plan in plans]
    assert 1 < len(set(alone))
    assert [alone] * THREADS == at_once(lambda number: [outputs(plan) for plan in plans])


def test_each_thread_has_its_own_messages_of_tensorrt(rtx: Flavour) -> None:
    """Messages go to the block of the thread they come from; the warnings' filters come back."""
    leave = threading.Barrier(THREADS)
    severity = rtx.module.ILogger.Severity.WARNING

    def block(number: int) -> list[str]:
        with collected(rtx) as messages:
            from polygraphy.backend.trt import util

            util.TRT_LOGGER.log(severity, f"from {number}")
            leave.wait(PATIENCE_S)
            util.TRT_LOGGER.log(severity, f"again {number}")
        return [message.text for message in messages]

    filters = list(warnings.filters)
    expected = [[f"from {number}", f"again {number}"] for number in range(THREADS)]
    assert expected == at_once(block)
    assert filters == list(warnings.filters)


def test_messages_of_tensorrts_own_threads_reach_every_block(rtx: Flavour) -> None:
    """What no block's thread says may concern any of them."""
    with collected(rtx) as messages:
        from polygraphy.backend.trt import util

        severity = rtx.module.ILogger.Severity.ERROR
        stranger = threading.Thread(target=util.TRT_LOGGER.log, args=(severity, "out of memory"))
        stranger.start()
        stranger.join()
    assert ["out of memory"] == [message.text for message in messages]


def test_builds_have_a_timing_cache_of_their_own(tmp_path: Path) -> None:
    """Each begins with what is shared, and takes its place whole when the build succeeds."""
    shared = tmp_path / "timing.cache"
    with private(shared) as first:
        assert first is not None
        assert not first.exists()
        first.write_bytes(b"one")
    with private(shared) as own, private(shared) as other:
        assert own is not None and other is not None and own != other
        assert b"one" == own.read_bytes() == other.read_bytes()
        own.write_bytes(b"own")
    assert b"own" == shared.read_bytes()
    with pytest.raises(OSError, match="build"), private(shared) as broken:
        assert broken is not None
        broken.write_bytes(b"broken")
        raise OSError("build")
    assert b"own" == shared.read_bytes()
    assert [shared] == list(tmp_path.iterdir())
    with private(None) as nothing:
        assert nothing is None


def test_a_build_afresh_neither_reads_nor_leaves_timings(tmp_path: Path) -> None:
    """What it timed is its own, to be saved with its engine."""
    shared = tmp_path / "timing.cache"
    shared.write_bytes(b"shared")
    with private(shared, afresh=True) as own:
        assert own is not None
        assert not own.exists()
        own.write_bytes(b"own")
    assert b"shared" == shared.read_bytes()
    assert [shared] == list(tmp_path.iterdir())


def test_engines_are_built_side_by_side(rtx: Flavour, tmp_path: Path) -> None:
    """Real builds in several threads honour what the same builds one by one honour."""
    weights = {"w": normal(64, 64), "v": normal(64, 64, seed=1)}
    text = "(float[8,64] x) => (float[8,64] y) { [a] a = MatMul(x, w) [b] y = MatMul(a, v) }"
    model = load_model(save(with_weights(parse(text), weights), tmp_path))
    backend = TensorRTBackend(
        TypedWriter(model, Pair(low="fp16", high="fp32")),
        EngineSettings(compute_capability="8.6"),
        rtx,
        {"x": [(8, 64)]},
        tmp_path / "work",
    )
    plans = [Plan.of(()), Plan.of((0,)), Plan.of((1,))] * 2

    def shown(number: int) -> list[tuple[str, Honour]]:
        with backend.build(plans[number]) as engine:
            return [(entry.layer, entry.honoured) for entry in engine.evidence().honours]

    alone = [shown(number) for number in range(len(set(plans)))]
    assert [[], [("a", Honour.HONOURED)], [("b", Honour.HONOURED)]] == alone
    assert alone * 2 == at_once(shown)
