"""Workers that are not alike are refused, and named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.cluster.cluster_client import combined
from precision_bisect.cluster.shipped_model import RemoteBackend
from precision_bisect.errors import UsageError
from precision_bisect.execution.evaluator_spec import Survey
from precision_bisect.execution.uniformity import (
    Said,
    gpu_names,
    merged,
    require_alike,
    require_alike_gpus,
    unlike_workers,
)
from precision_bisect.layer_table import LayerName

WORDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))
SAID = st.dictionaries(st.sampled_from(["one", "two", "three"]), WORDS)


@given(SAID)
def test_alike_is_what_says_the_same(said: Said) -> None:
    """There is no difference exactly where all say the same, and else every worker is named."""
    trouble = unlike_workers(said)
    assert (trouble == "") == (len({frozenset(words.items()) for words in said.values()}) <= 1)
    assert not trouble or all(worker in trouble for worker in said)


@given(SAID)
def test_merging_keeps_every_value(said: Said) -> None:
    """What workers say together has every value that one of them says, in an order of its own."""
    together = merged(said)
    assert {what for words in said.values() for what in words} == set(together)
    for words in said.values():
        assert all(value in together[what].split(" and ") for what, value in words.items())
    assert together == merged({worker: said[worker] for worker in reversed(list(said))})


def test_gpus_of_two_kinds_are_refused() -> None:
    """The error names both kinds and which GPU is which."""
    kinds = {"0": "NVIDIA A100", "1": "NVIDIA H100", "2": "NVIDIA A100"}
    with pytest.raises(UsageError) as caught:
        require_alike_gpus("012", lambda gpus: {f"GPU {g}": {"device": kinds[g]} for g in gpus})
    assert "device is NVIDIA A100 on GPU 0, GPU 2 and NVIDIA H100 on GPU 1" in str(caught.value)
    assert "--mixed-gpus" in caught.value.hint


def look(device: str, backend: str = "onnxruntime", stuck: str = "") -> RemoteBackend:
    """Return what a worker says that has this GPU; `stuck` is a layer that cannot run low."""
    survey = Survey(
        name=backend,
        emulated=False,
        said={"device": device, "cuda": "13.0"},
        stuck={LayerName(stuck): "no kernel"} if stuck else {},
    )
    return RemoteBackend(backend=backend, why="", survey=survey)


def test_workers_with_unlike_gpus_are_refused_unless_mixed() -> None:
    """Workers of a cluster are compared by what their backends say of themselves."""
    looks = {"tcp://a": look("NVIDIA A100", stuck="x"), "tcp://b": look("NVIDIA H100", stuck="y")}
    with pytest.raises(UsageError, match="NVIDIA A100 on tcp://a and NVIDIA H100 on tcp://b"):
        combined(looks, mixed=False)
    together = combined(looks, mixed=True).survey
    assert {"device": "NVIDIA A100 and NVIDIA H100", "cuda": "13.0"} == together.versions()
    assert {"x", "y"} == set(together.unbuildable())
    alike = {"tcp://a": look("NVIDIA A100"), "tcp://b": look("NVIDIA A100")}
    assert look("NVIDIA A100") == combined(alike, mixed=False)


def test_workers_that_would_use_different_backends_are_refused() -> None:
    """That is so even where GPUs may be mixed, and the hint is another one."""
    looks = {"a": look("NVIDIA A100"), "b": look("none", backend="emulated")}
    with pytest.raises(
        UsageError, match="backend is onnxruntime on a and emulated on b"
    ) as caught:
        combined(looks, mixed=True)
    assert "--backend" in caught.value.hint


def test_gpus_of_one_kind_are_taken() -> None:
    """GPUs of the same name are alike, and one GPU is not even asked."""
    require_alike_gpus("01", lambda gpus: {gpu: {"device": "NVIDIA A100"} for gpu in gpus})
    require_alike_gpus("0", lambda gpus: pytest.fail("asked"))
    require_alike({})


def test_a_gpu_that_is_not_there_has_no_name() -> None:
    """CUDA is asked for each in a process of its own; what it does not know is "none"."""
    assert {"GPU 997": {"device": "none"}} == gpu_names(["997"])
