"""Reads a job's model and samples: `python -m` this module, with the words of the job's command.

In a process of its own: a loader is the user's code, which may crash, hang, or change what the
process has, and samples may be large. Why the job cannot run is the last line that it prints.
"""

import sys

from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.load_samples import load_samples, refuse_inputs
from precision_bisect.runs.monitoring.events import ignore

if __name__ == "__main__":
    try:
        options = to_options(run_parser().read(sys.argv[1:]))
        model = load_model(options.model)
        refuse_inputs(options, model)
        load_samples(options, model, ignore)
    except PrecisionBisectError as error:
        sys.stdout.buffer.write(f"\n{error.one_line()}".encode(errors="replace"))
        sys.exit(ExitCode.USAGE)
