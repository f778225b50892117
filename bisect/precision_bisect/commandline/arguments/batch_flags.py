"""The arguments of `precision-bisect batch`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from precision_bisect.commandline.arguments.command_flags import Telling
from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import flag
from precision_bisect.settings.reading import parse_workers
from precision_bisect.settings.worker_options import MOST_THREADS

_JOBS = """\
jobs.toml:
  [defaults]                 # for every job
  max-time = "2h"

  [[job]]                    # one search each, in this order
  model = "detector.onnx"    # paths start at the folder of jobs.toml
  name = "detector"          # of its run folder and log (the model's name)
  tol = ["logits=1e-2", "boxes=1e-1"]
  inputs = "detector_inputs"

Keys are the flags of `precision-bisect MODEL` without their dashes; true is a
flag without a value, a list repeats a flag. A model that is a folder, or a
pattern such as "models/*.onnx", is one job for each file. {name} in other
values is the job's name. All models and samples are read before the first job
begins.
"""
_EXIT_CODES = """
exit codes, the first that applies:
  130  interrupted; what was found so far is written
  70   an internal error ended a job
  2    wrong usage or bad input, or a job could not run, or crashed
  6    an exported model of a job must not be used
  4    not even FP32 builds for a job
  1    a job ended without a plan, or keeps more than it may
  3    a job ended early, or the time is up
  0    every job found its plan, or has nothing to keep
"""


_option = partial(flag, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What `precision-bisect batch` is asked to do; `until` and `at_once` as written there."""

    jobs_file: Path
    out: Path | None = _option(
        None,
        "run folders, logs, batch.json, summary.md and junit.xml (JOBS.precision-bisect)",
        metavar="DIR",
    )
    at_once: str = _option(
        "1", "jobs at a time; gpu:0,1,2,3: one on each of these GPUs (1)", metavar="N|gpu:0,1"
    )
    until: str | None = _option(
        None,
        "end by then: 06:00, or an ISO date and time; what is not finished is left for --resume",
        metavar="TIME",
    )
    resume: bool = _option(
        False, "go on with the batch in the folder: what is finished is not run again"
    )
    overwrite: bool = _option(False, "replace the batch that the folder holds")

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other", "choose one")
        if not 1 <= parse_workers(self.at_once, "--at-once")[0] <= MOST_THREADS:
            raise UsageError(f"--at-once cannot be {self.at_once}", f"give 1 to {MOST_THREADS}")

    @property
    def folder(self) -> Path:
        return self.out or Path(f"{self.jobs_file.stem}.precision-bisect")

    @property
    def places(self) -> Sequence[str | None]:
        """Where jobs run at the same time: the GPU of each, None for all that there are."""
        count, gpus = parse_workers(self.at_once, "--at-once")
        return gpus or (None,) * count


def batch_parser() -> Parser:
    parser = Parser(
        "batch",
        description="Search many models, each in a process of its own.",
        short_usage="precision-bisect batch JOBS.toml [flags]",
        short_epilog=f"{_JOBS}\n--help-all shows the exit codes.",
        everyday=("out", "at_once", "until", "resume", "overwrite", "dry_run", "json", "github"),
        epilog=f"{_JOBS}{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_needed("jobs", "the models and their flags", "jobs.toml")
    parser.add_flags(BatchOptions, "options")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the jobs and print their commands, no more"
    )
    parser.add_argument(
        "--json", action="store_true", help="print batch.json instead of a line a job"
    )
    parser.add_flags(Telling, "github", spare=False)
    return parser
