"""The arguments that say where a run goes, and what it tells at its end."""

import argparse

from precision_bisect.arguments.parser import folder
from precision_bisect.options import ANSWER, EXPORT_POINTS


def add_output_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the run folder, what becomes of a run that it holds, and the output."""
    group.add_argument(
        "--out", type=folder, metavar="DIR", help="the run folder (MODEL.precision-bisect)"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder, or begin it"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="replace the run that the folder holds"
    )
    group.add_argument(
        "--keep-engines",
        action="store_true",
        help="keep the engine of every trial in DIR/engines, not only the accepted one",
    )
    group.add_argument(
        "--disk-cap",
        default="10G",
        metavar="SIZE",
        help="what kept engines, logs and caches may take; engines that failed go first, the "
        "oldest before others, the accepted one never (10G)",
    )
    add_export_point(group)
    add_explain_search(group)
    group.add_argument("--json", action="store_true", help="print result.json instead of text")
    group.add_argument(
        "--on-finish",
        metavar="CMD",
        help="call this command once the result is written, however the run ended, with the path "
        "of result.json as its last argument; quoted as for a shell, but no shell runs it",
    )


def add_export_point(group: argparse._ActionsContainer) -> None:
    """Add `--export-point`."""
    group.add_argument(
        "--export-point",
        type=_point,
        default=ANSWER,
        metavar=f"{'|'.join(EXPORT_POINTS)}|K",
        help="which plan of the curve the exported files hold: the answer, the culprits alone, "
        "the answer and a few layers more that bring the error far down, or that of K kept layers "
        "(answer)",
    )


def add_explain_search(group: argparse._ActionsContainer) -> None:
    """Add `--explain-search`."""
    group.add_argument(
        "--explain-search",
        action="store_true",
        help="print each trial but the forecasts: why this plan, what was believed, what came of "
        "it",
    )


def _point(text: str) -> str:
    """Return a point of the curve, a number without leading zeros."""
    if text in EXPORT_POINTS:
        return text
    if not (text.isascii() and text.isdecimal()):
        names = ", ".join(EXPORT_POINTS)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {names}, and no number of layers")
    return str(int(text))


def add_gate_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what an answer is held against."""
    group.add_argument(
        "--max-kept",
        type=int,
        metavar="N",
        help="exit with 1 where more than N layers are kept, for CI",
    )
    group.add_argument(
        "--baseline",
        type=folder,
        metavar="RESULT",
        help="exit with 1 where a layer is kept that this result.json, or the one in this run "
        "folder, does not keep, and name it, for CI",
    )
