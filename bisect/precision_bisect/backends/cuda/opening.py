"""Opening typed graphs in ONNX Runtime, also those that one of its fusions breaks.

The optimizer can fuse neighbours of mixed types into an ill-typed operator, such as a
SkipLayerNormalization that reads both float and float16. No session can be made of that, though
the graph is right. So a refused graph is tried again: without the fusions that make the operators
which the error names, then without any fusion, then at lower optimisation levels.
"""

import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.provider import AS_WRITTEN, CPU_LAYOUTS
from precision_bisect.errors import shortened
from precision_bisect.graphs.ort import (
    DATA_FOLDER,
    Providers,
    ort_message,
    runtime,
    session_options,
)
from precision_bisect.trial import Opening, TrialStatus

if TYPE_CHECKING:
    import onnxruntime

FUSIONS: Mapping[str, tuple[str, ...]] = {
    "SkipLayerNormalization": ("SkipLayerNormFusion", "BiasSkipLayerNormFusion"),
    "SkipSimplifiedLayerNormalization": ("SkipLayerNormFusion", "BiasSkipLayerNormFusion"),
    "EmbedLayerNormalization": ("EmbedLayerNormFusion",),
    "LayerNormalization": ("LayerNormFusionL1", "LayerNormFusionL2"),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormFusion",),
    "Attention": ("AttentionFusion",),
    "GroupQueryAttention": ("GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion"),
    "Gelu": ("GeluFusionL1", "GeluFusionL2"),
    "BiasGelu": ("BiasGeluFusion",),
    "FastGelu": ("FastGeluFusion",),
    "QuickGelu": ("QuickGeluFusion",),
    "BiasSoftmax": ("BiasSoftmaxFusion",),
    "BiasDropout": ("BiasDropoutFusion",),
    "FusedMatMul": ("MatMulScaleFusion", "MatmulTransposeFusion"),
    "FusedConv": ("ConvActivationFusion", "ConvAddActivationFusion"),
    "Conv": ("ConvAddFusion", "ConvMulFusion", "ConvBNFusion"),
    "Gemm": ("MatMulAddFusion", "GemmSumFusion", "GemmTransposeFusion"),
}
"""The optimizers that make an operator; names as in ONNX Runtime's graph_transformer_utils.cc."""

_ALL = frozenset(name for names in FUSIONS.values() for name in names)
_PROFILES = count()
# The provider's option. Without it no run is captured; with it, a run says which graph it is.
_CAPTURE = "enable_cuda_graph"
# How errors name an operator: `Optype (Add)`, `operator (Sin)`, `… for Add(14)`.
_OPERATOR = re.compile(r"(?:[Oo]p ?type|operator|and type) \((\w+)\)|\bfor (\w+)\(\d+\)")


class OpeningError(Exception):
    """ONNX Runtime refuses the graph at every level; the text is its own, one line."""


@contextmanager
def opening_failures() -> Iterator[None]:
    """Have errors of opening a session inside the block be outcomes: BackendFailure."""
    try:
        yield
    except OpeningError as error:
        raise failure(TrialStatus.BUILD_FAILED, str(error)) from error
    except TimeoutError as error:
        raise failure(TrialStatus.TIMED_OUT, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session, how it was opened, and in `notes` what had to be switched off for it.

    Each note is one sentence. `captures` tells that runs may be captured as a CUDA graph.
    """

    session: "onnxruntime.InferenceSession"
    opening: Opening
    notes: tuple[str, ...]
    captures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Opens files of typed graphs on `providers`.

    Sessions record which provider takes which node. They also write a profile, until they are told
    to end it, in files whose names begin with `profiles`. `timeout_s` is the limit in seconds on
    one opening with all its attempts, None for no limit. Files of weights are looked for from the
    folder `data` on, None for that of the graph. The optimised graph is written to the file
    `optimised`, if one is named. With `capturing`, runs may be captured as a CUDA graph where ONNX
    Runtime puts all nodes on the GPU.
    """

    providers: Providers
    profiles: Path
    timeout_s: float | None = None
    data: Path | None = None
    optimised: Path | None = None
    capturing: bool = False

    def open(self, path: Path) -> Opened:
        """Open a graph. Raises OpeningError where every attempt fails, TimeoutError."""
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        errors: list[OpeningError] = []
        for opening, off in _attempts(errors):
            own = self.providers[0]
            actual = replace(opening, options={} if isinstance(own, str) else dict(own[1]))
            # ONNX Runtime refuses to open what it cannot capture: a node on the CPU, an If.
            for captures in (True, False)[not self.capturing :]:
                try:
                    session = self._session(path, opening, deadline, captures=captures)
                except OpeningError as error:
                    if not captures:
                        errors.append(error)
                    continue
                return Opened(
                    session=session, opening=actual, notes=_notes(off, errors), captures=captures
                )
        raise errors[-1]

    def _on(self, *, captures: bool) -> Providers:
        """Return the providers; the first may capture CUDA graphs."""
        first, *others = self.providers
        name, options = (first, {}) if isinstance(first, str) else first
        return [(name, {**options, _CAPTURE: "1"}), *others] if captures else self.providers

    def _session(
        self, path: Path, opening: Opening, deadline: float | None, *, captures: bool
    ) -> "onnxruntime.InferenceSession":
        ort = runtime()
        options = session_options()
        options.log_severity_level = 4
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = getattr(levels, opening.level)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in AS_WRITTEN.items():
            options.add_session_config_entry(key, value)
        if self.data is not None:
            # It holds for graphs that do not come from a file.
            options.add_session_config_entry(DATA_FOLDER, str(self.data))
        options.enable_profiling = True
        # ONNX Runtime adds the time in seconds, which sessions that open side by side share.
        options.profile_file_prefix = f"{self.profiles}-{next(_PROFILES)}"
        if self.optimised is not None:
            options.optimized_model_filepath = str(self.optimised)
        with _cancelled_at(deadline, options):
            try:
                return ort.InferenceSession(
                    path if self.data is None else path.read_bytes(),
                    options,
                    providers=list(self._on(captures=captures)),
                    # Its fallback would print to stdout and take another provider.
                    enable_fallback=0,
                    disabled_optimizers=set(opening.disabled),
                )
            except Exception as error:  # onnxruntime's classes share no base but Exception
                if type(error).__name__ == "ModelLoadCanceled":
                    raise TimeoutError(f"not built within {self.timeout_s:g} s") from error
                raise OpeningError(ort_message(error)) from error


def _attempts(errors: Sequence[OpeningError]) -> Iterator[tuple[Opening, str]]:
    """Yield how to open a graph, and what that switches off, by the errors so far."""
    off: frozenset[str] = frozenset()
    # Switching one fusion off may let another one break the graph: go on while errors name new
    # ones.
    while not errors or fusions_behind(str(errors[-1])) - off:
        off = off.union(*(fusions_behind(str(error)) for error in errors))
        yield opening_without(off), ", ".join(sorted(off))
    yield opening_without(_ALL), "all fusions"
    yield opening_without(_ALL, "ORT_ENABLE_BASIC"), "all but basic optimisations"
    yield opening_without(_ALL, "ORT_DISABLE_ALL"), "all optimisations"


def opening_without(off: Collection[str], level: str = "ORT_ENABLE_ALL") -> Opening:
    """Return the opening without these optimizers and those that are never wanted."""
    return Opening(level=level, disabled=tuple(sorted(CPU_LAYOUTS.union(off))))


@contextmanager
def _cancelled_at(deadline: float | None, options: Any) -> Iterator[None]:
    """Let ONNX Runtime give up making the session once the deadline is over."""
    if deadline is None:
        yield
        return
    # The flag stops ONNX Runtime between its steps; no thread has to be killed.
    remaining_s = deadline - time.monotonic()
    timer = threading.Timer(max(remaining_s, 0.0), options.set_load_cancellation_flag, (True,))
    if remaining_s > 0:
        timer.start()
    else:
        options.set_load_cancellation_flag(True)
    try:
        yield
    finally:
        timer.cancel()


def fusions_behind(error: str) -> frozenset[str]:
    """Return the fusions that make the operators which an error names."""
    named = {name for match in _OPERATOR.finditer(error) for name in match.groups() if name}
    return frozenset(fusion for name in named for fusion in FUSIONS.get(name, ()))


def _notes(off: str, errors: Sequence[OpeningError]) -> tuple[str, ...]:
    """Say what was switched off and for which error; nothing if nothing was."""
    return tuple(
        f"ONNX Runtime's optimizer spoiled the graph, so {off} were switched off: "
        f"{shortened(str(error))}"
        for error in errors[:1]
    )
