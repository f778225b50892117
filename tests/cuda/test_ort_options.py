"""The user's own options of ONNX Runtime's CUDA provider."""

import json
from pathlib import Path

import pytest

from precision_bisect.backends.cuda.provider import (
    CUDA,
    deployed_provider,
    emulating,
    on_cuda,
    searching,
)
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import UsageError
from precision_bisect.pipeline.run_fingerprint import _plain
from precision_bisect.settings.engine_settings import (
    CUDA_OPTIONS,
    EngineSettings,
    parse_ort_options,
)
from tiny import search, write_model

OWN = {"cudnn_conv_algo_search": "EXHAUSTIVE", "prefer_nhwc": "1"}


def test_own_options_come_first() -> None:
    """They stand in place of this package's, which stay where the user says nothing."""
    expected = {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested", **OWN}
    assert expected == deployed_provider(own=OWN)
    assert OWN.items() <= searching(own=OWN).items()
    assert [(CUDA, {**expected, "gpu_mem_limit": "8"})] == on_cuda(expected, most_bytes=8)


def test_a_search_plans_fast_and_a_deployment_runs_fast() -> None:
    """Only the algorithm differs; TF32 is as asked in both."""
    assert {"use_tf32": "1", "cudnn_conv_algo_search": "EXHAUSTIVE"}.items() <= deployed_provider(
        tf32=True
    ).items()
    assert {**deployed_provider(), "cudnn_conv_algo_search": "DEFAULT"} == searching()
    assert "1" == emulating()["use_ep_level_unified_stream"]


def test_the_flag_is_repeatable() -> None:
    """The command line hands them on, and they are part of what verdicts depend on."""
    words = [
        "model.onnx",
        *(word for k, v in OWN.items() for word in ("--ort-option", f"{k}={v}")),
    ]
    settings = to_options(run_parser().parse_args(words)).engine
    assert OWN == settings.ort_options
    assert OWN == _plain(settings)["ort_options"]
    assert [1, 3] == _plain(EngineSettings(opt_shapes={"x": (1, 3)}))["opt_shapes"]["x"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["use_tf23=1"], "'use_tf23' is no option of ONNX Runtime's CUDA provider that results"),
        (["device_id=1"], "'device_id' is no option"),
        (["use_tf32"], "cannot read 'use_tf32'"),
        (["use_tf32=yes"], "use_tf32 cannot be 'yes'"),
        (["cudnn_conv_algo_search=heuristic"], "cannot be 'heuristic'"),
        (["sdpa_kernel=-1"], "sdpa_kernel cannot be '-1'"),
        (["use_tf32=0", "use_tf32=1"], "given twice for use_tf32"),
    ],
)
def test_what_is_no_option_is_refused(texts: list[str], said: str) -> None:
    """Names and values are checked before anything is opened; the hint says what may stand."""
    with pytest.raises(UsageError, match=said) as caught:
        parse_ort_options(texts)
    assert caught.value.hint


def test_settings_check_them_too() -> None:
    """So does Python's entry, and TF32 cannot be asked for and forbidden."""
    with pytest.raises(UsageError, match="no option"):
        EngineSettings(ort_options={"nothing": "1"})
    with pytest.raises(UsageError, match="exclude each other"):
        EngineSettings(tf32="on", ort_options={"use_tf32": "0"})
    with pytest.raises(UsageError, match="exclude each other"):
        EngineSettings(tf32="off", ort_options={"use_tf32": "1"})
    assert EngineSettings(tf32="on", ort_options={"use_tf32": "1"}).in_tf32


def test_the_answer_is_opened_by_them(tmp_path: Path) -> None:
    """Where the emulator judges they are written down for the target."""
    settings = EngineSettings(ort_options=OWN)
    model = write_model(tmp_path / "tiny.onnx")
    search(model, tmp_path / "run", engine=settings, backend="emulated")
    told = json.loads((tmp_path / "run" / "result.json").read_text())["deployment"]
    # What keeps no product is opened with TF32 as the library has it.
    assert deployed_provider(tf32=True, own=OWN) == told["provider_options"]
    script = (tmp_path / "run" / "run_onnxruntime.py").read_text()
    assert "'cudnn_conv_algo_search': 'EXHAUSTIVE'" in script
    assert "the answer was not judged by these options" in script


@pytest.mark.gpu
@pytest.mark.parametrize("key", CUDA_OPTIONS)
def test_cuda_takes_every_option(key: str, tmp_path: Path) -> None:
    """Each is an option of this ONNX Runtime, with each of its values; not all are told back."""
    import onnxruntime

    from models import parse, save
    from precision_bisect.backends.cuda.provider import why_no_cuda

    if (trouble := why_no_cuda()) is not None:
        pytest.skip(trouble)
    path = save(parse("(float[1] x) => (float[1] y) { y = Relu(x) }"), tmp_path)
    for value in CUDA_OPTIONS[key] or ("1073741824" if key == "gpu_mem_limit" else "0",):
        session = onnxruntime.InferenceSession(
            path, providers=on_cuda(deployed_provider(own={key: value}))
        )
        assert CUDA == session.get_providers()[0]
        assert value == session.get_provider_options()[CUDA].get(key, value)
