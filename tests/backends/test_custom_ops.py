"""Operators from a user's library, here those of ONNX Runtime's own extensions."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models import parse, save, with_weights
from precision_bisect.api import run
from precision_bisect.commandline.main import main
from precision_bisect.errors import ModelError, PluginError
from precision_bisect.model.ort import use_custom_ops
from precision_bisect.monitoring.events import ignore
from precision_bisect.options import Options
from precision_bisect.settings.engine_settings import EngineSettings

DOMAIN = "ai.onnx.contrib"
BODY = (
    "(float[2,4] x) => (float[2,4] y) { h = Tanh(x) n, p = NegPos(h) e = Mul(p, c) y = Mul(e, d) }"
)


@pytest.fixture
def library() -> Iterator[Path]:
    """Yield the library of onnxruntime-extensions; afterwards sessions know none again."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    yield Path(extensions.get_library_path())
    use_custom_ops(())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with an operator of the library, beyond which it overflows."""
    weights = {"c": np.array(1e6, np.float32), "d": np.array(1e-6, np.float32)}
    proto = with_weights(parse(BODY), weights)
    proto.graph.node[1].domain = DOMAIN
    proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return save(proto, tmp_path)


@pytest.mark.parametrize("isolate", ["never", "always"])
def test_a_model_with_operators_of_a_library_is_judged(
    library: Path, model: Path, tmp_path: Path, isolate: str
) -> None:
    """Reference, emulator and child processes know them; the layers behind them are candidates."""
    result = run(
        Options(
            model=model,
            out=tmp_path / "run",
            backend="emulated",
            isolate="always" if isolate == "always" else "never",
            engine=EngineSettings(ort_custom_ops=(library,)),
        ),
        ignore,
    )
    assert ["node_of_e", "node_of_y"] == list(result.kept)
    assert f"operators of {library.name}, 1" in result.fingerprint["versions"]
    assert repr(str(library)) in (tmp_path / "run" / "run_onnxruntime.py").read_text()


def test_without_the_library_the_flag_is_named(model: Path, tmp_path: Path) -> None:
    """What ONNX Runtime does not know can be taught to it."""
    with pytest.raises(ModelError, match="NegPos") as caught:
        run(Options(model=model, out=tmp_path / "run", backend="emulated"), ignore)
    assert "--ort-custom-ops LIB.so registers operators" in caught.value.hint


def test_layers_are_listed_as_a_run_has_them(
    library: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library that teaches ONNX Runtime the operator is no trouble, nor makes it a candidate."""
    assert 0 == main(["layers", str(model), "--ort-custom-ops", str(library)])
    assert "3 candidates of 4 nodes" in capsys.readouterr().out


def test_a_library_without_operators_is_one_line(library: Path) -> None:
    """Any other shared library is told from one for ONNX Runtime before it is needed."""
    del library
    other = next((Path(onnxruntime.__file__).parent / "capi").glob("*pybind11_state*"))
    with pytest.raises(PluginError) as caught:
        use_custom_ops([other])
    assert "RegisterCustomOps" in caught.value.one_line()
    assert 1 == len(caught.value.one_line().splitlines())
