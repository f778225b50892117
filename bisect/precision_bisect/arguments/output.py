"""The arguments that say where a run goes, and what it tells at its end."""

import argparse

from precision_bisect.arguments.parser import folder


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
    group.add_argument("--json", action="store_true", help="print result.json instead of text")
    group.add_argument(
        "--on-finish",
        metavar="CMD",
        help="call this command once the result is written, however the run ended, with the path "
        "of result.json as its last argument; quoted as for a shell, but no shell runs it",
    )


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
