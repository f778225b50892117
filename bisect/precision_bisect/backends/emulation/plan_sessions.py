"""The sessions of the emulator: one for all plans, whole or in segments, or one for one plan."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.dropped_nan import watch_dropped
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.segments import Segmented, cut
from precision_bisect.backends.emulation.snippets import self_test
from precision_bisect.backends.emulation.switched import SwitchedGraph, Switches
from precision_bisect.errors import ModelError
from precision_bisect.graphs.load import Model, at_least_opset, hint_to_export
from precision_bisect.graphs.lowtypes import KINDS
from precision_bisect.graphs.ort import ON_CPU, Providers, Session, check
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.layer_table import rounded_to
from precision_bisect.machine.free_space import trim
from precision_bisect.precisions import Pair

# Bytes of a switched graph up to which it stays at hand. A limit on memory.
_HELD_BYTES = 2**25

# Once a process: what its ONNX Runtime makes of round trips stays as it is.
_tested_on_cpu = cache(self_test)


@dataclass(frozen=True, slots=True)
class Opened:
    """The session of all plans, whole or in segments, and how a plan sets its switches.

    `watched` are the outputs that count dropped NaN, each with the node that drops them. `fixed`
    is what runs low in the only plan that it serves, None where it serves all.
    """

    session: Session | Segmented
    switches: Switches
    watched: Mapping[str, str]
    fixed: NDArray[np.bool_] | None = None

    def serves(self, low: NDArray[np.bool_] | None) -> bool:
        """Tell whether it serves a plan, None for all."""
        return self.fixed is None or (low is not None and bool((self.fixed == low).all()))


class Graphs:
    """Makes the switched graph of a target, and holds it while it is small, or `as_text`.

    Several sessions may be opened of one. It comes with its `watched` outputs; see `Opened`.
    """

    def __init__(self, make: Callable[[Model], SwitchedGraph], *, as_text: bool = False) -> None:
        self._make = make
        self._as_text = as_text
        self._text: tuple[bytes, SwitchedGraph, Mapping[str, str]] | None = None
        self.held: tuple[SwitchedGraph, Mapping[str, str]] | None = None

    def of(self, usable: Model) -> tuple[SwitchedGraph, Mapping[str, str]]:
        """Return the graph and what it watches; `usable` is always the same model."""
        if self.held is not None:
            return self.held
        if self._text is None:
            graph = self._make(usable)
            watched = watch_dropped(graph, usable)
            if self._as_text:
                # The messages of 5,000 layers take 100 MB, their text 4.
                text = graph.proto.SerializeToString()
                self._text = text, replace(graph, proto=onnx.ModelProto()), watched
            elif graph.proto.ByteSize() + total_bytes(graph.weights) <= _HELD_BYTES:
                self.held = graph, watched
            return graph, watched
        text, graph, watched = self._text
        return replace(graph, proto=onnx.ModelProto.FromString(text)), watched


def open_session(
    model: Model,
    pair: Pair,
    graphs: Graphs,
    threads: int,
    choose: Callable[[], Providers],
    *,
    in_segments: bool,
    fixed: NDArray[np.bool_] | None,
    bare: bool,
) -> Opened:
    """Return the session of a model, or of a `fixed` plan; raises as `EmulatedBackend` does.

    For `bare` graphs see `is_bare`.
    """
    providers = choose()
    kinds = [KINDS[name] for name in rounded_to(model.table, pair)]
    for kind in kinds:
        if providers == ON_CPU:
            _tested_on_cpu(kind)
        else:
            # With the providers in use: another provider may not keep round trips.
            self_test(kind, providers)
    newest = max(kinds, key=lambda kind: kind.lowest_opset, default=None)
    usable = model
    if newest is not None:
        usable = at_least_opset(model, newest.lowest_opset, newest.name)
    try:
        graph, watched = graphs.of(usable)
        # A plan's own graph packs weights if that of all plans does: otherwise results differ.
        nodes, nbytes = len(graph.proto.graph.node), total_bytes(graph.weights)
        if fixed is not None:
            graph = for_plan(graph, usable, fixed, bare=bare)
        switches = graph.switches
        segments = deque(
            cut(graph, usable, bare=bare) if in_segments and providers == ON_CPU else ()
        )
        whole = None
        if not segments:
            whole = replace(check(graph.proto, graph.weights), nodes=nodes, nbytes=nbytes)
        # With thousands of layers the graph takes as much memory as their weights: free it before
        # the session takes its own.
        del graph
        session: Session | Segmented
        if whole is None:
            names = [*(spec.name for spec in usable.outputs), *watched]
            session = Segmented(segments, names, threads)
        else:
            session = Session(whole, None, threads, providers, optimised=not bare, packed=True)
    except ModelError as error:
        # The whole graph may load where a segment, or that of one plan, does not.
        if in_segments or fixed is not None:
            return open_session(
                model, pair, graphs, threads, choose, in_segments=False, fixed=None, bare=bare
            )
        if newest is None or usable is model:
            raise
        raise ModelError(
            f"{newest.name} needs opset {newest.lowest_opset}, and the model does not "
            f"survive the conversion: {error.message}",
            hint_to_export(newest.lowest_opset),
        ) from error
    # The session has copies of its own.
    del whole
    trim()
    return Opened(session, switches, watched, fixed)
