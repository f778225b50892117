"""The arguments that say how fast the answer must be."""

import argparse


def add_speed_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the speed limits and where a study of them is kept."""
    group.add_argument(
        "--max-latency",
        type=float,
        metavar="MS",
        help="the answer must take at most so many milliseconds per inference; it is timed in "
        "turns with every layer high, and made faster where that costs no more than the tolerance",
    )
    group.add_argument(
        "--min-speedup",
        type=float,
        metavar="X",
        help="the answer must be at least X times as fast as every layer high. Both limits need "
        "an engine that is timed: ONNX Runtime on CUDA, TensorRT or TensorRT-RTX",
    )
    group.add_argument(
        "--optuna-storage",
        metavar="URL",
        help="with --strategy pareto: copy the study there as it grows, as for optuna-dashboard "
        "(sqlite:///pareto.db)",
    )
