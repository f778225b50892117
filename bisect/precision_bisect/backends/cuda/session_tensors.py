"""Tensors inside a session of ONNX Runtime, shown as outputs where that fuses nothing else.

The optimizer keeps the names of tensors that it does not fuse away. These become outputs of the
graph, and the optimised graph must have the same nodes as without.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.cuda_engine import as_bound
from precision_bisect.backends.cuda.opening import Opened, Opener, OpeningError
from precision_bisect.backends.inspection.shown_tensors import ShownTensor
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.graph import showing
from precision_bisect.graphs.ort import ort_message
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.types import infer_elem_types
from precision_bisect.protocols import Sample
from precision_bisect.trial import TrialStatus

_SHOWN = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
"""Types of which a session gives arrays; numpy has no BF16."""


def shown_by_session(
    files: TypedFolder, typed: TypedGraph, opener: Opener, feeds: Sequence[Sample]
) -> list[list[ShownTensor]]:
    """Return what a session of a typed graph shows of each feed.

    Raises BackendFailure where it does not open or run, RefusedError where showing a tensor
    changes the nodes of the optimised graph.
    """
    first, plain = _opened(files, typed, opener)
    Path(first.session.end_profiling()).unlink()
    del first
    weights = {name: weight.source for name, weight in typed.weights.items()}
    types = infer_elem_types(typed.proto, weights)
    names = [
        name for node in plain.node for name in node.output if name and types.get(name) in _SHOWN
    ]
    extended = replace(typed, proto=showing(typed.proto, names, types))
    opened, shown = _opened(files, extended, opener)
    if _nodes(plain) != _nodes(shown):
        raise RefusedError(
            "showing the tensors of the session changes what ONNX Runtime fuses",
            "leave out --rank-by",
        )
    session = opened.session
    outputs = [output.name for output in session.get_outputs()]
    tensors = []
    for feed in feeds:
        try:
            values = session.run(outputs, as_bound(session, feed))
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error
        tensors.append(
            [
                ShownTensor(name=name, nodes=(), tensors=(name,), values=array)
                for name, array in zip(outputs, values, strict=True)
                if array.dtype.kind == "f"
            ]
        )
    Path(session.end_profiling()).unlink()
    return tensors


def _opened(
    files: TypedFolder, typed: TypedGraph, opener: Opener
) -> tuple[Opened, onnx.GraphProto]:
    """Return a session and the graph that it computes. Raises BackendFailure."""
    optimised = opener.profiles.with_name("shown.onnx")
    own = replace(opener, data=files.root, optimised=optimised, capturing=False)
    try:
        with files.saved(typed) as file:
            opened = own.open(file)
        graph = onnx.load(optimised, load_external_data=False).graph
        optimised.unlink()
    except OpeningError as error:
        raise failure(TrialStatus.BUILD_FAILED, str(error)) from error
    except TimeoutError as error:
        raise failure(TrialStatus.TIMED_OUT, str(error)) from error
    return opened, graph


def _nodes(graph: onnx.GraphProto) -> Counter[tuple[str, str]]:
    """Return how many nodes of each operator a graph has."""
    return Counter((node.domain, node.op_type) for node in graph.node)
