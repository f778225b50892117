"""Reads a job's model and samples: `python -m` this module, with the words of the job's command.

In a process of its own: a loader is the user's code, which may crash, hang, or change what the
process has, and samples may be large. Why the job cannot run is the last line that it prints.
"""

import sys
from contextlib import suppress
from pathlib import Path

from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.batch.job_process import OTHER_MODEL
from precision_bisect.errors import ExitCode, PrecisionBisectError, RunFolderError
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.load_samples import load_samples, refuse_inputs
from precision_bisect.runs.ledger.ledger_reader import ledgers, read_ledger
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.runfolder import FUSED_MODEL, TAKEN_MODEL


def holds_another(folder: Path, digest: str) -> bool:
    """Tell whether a folder holds runs of other models than this, or than were made of it."""
    with suppress(RunFolderError):
        headers = [read_ledger(path).header for path in ledgers(folder)]
        searched = {str(header.fingerprint.get("model")) for header in headers}
        # A fused form that was tried beside a file is not what was searched.
        fused = any(header.options.get("fuse_norms") for header in headers)
        made = (folder / TAKEN_MODEL).exists() or (fused and (folder / FUSED_MODEL).exists())
        return bool(searched) and digest not in searched and not made
    return False


if __name__ == "__main__":
    try:
        options = to_options(run_parser().read(sys.argv[1:]))
        model = load_model(options.model).with_io_types(options.engine.io_types)
        refuse_inputs(options, model)
        load_samples(options, model, ignore)
        sys.exit(OTHER_MODEL if holds_another(options.folder, model.digest) else ExitCode.OK)
    except PrecisionBisectError as error:
        sys.stdout.buffer.write(f"\n{error.one_line()}".encode(errors="replace"))
        sys.exit(ExitCode.USAGE)
