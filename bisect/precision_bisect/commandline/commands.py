"""The commands beside the main job: each takes its parsed arguments and returns the exit code.

Nothing but argparse and the standard library is imported before one really starts.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from precision_bisect.commandline.arguments.batch_flags import BatchOptions, batch_parser
from precision_bisect.commandline.arguments.command_flags import (
    WORST,
    compare_parser,
    doctor_parser,
    explain_parser,
    export_parser,
    layers_parser,
    report_parser,
    show_parser,
    status_parser,
    target_parser,
    to_explain_options,
    verify_parser,
)
from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.run_flags import curve_parser, to_options
from precision_bisect.commandline.internal_errors import complain, tell
from precision_bisect.commandline.job import search
from precision_bisect.errors import ExitCode, PrecisionBisectError, RunFolderError, UsageError
from precision_bisect.options import Options
from precision_bisect.runs.runfolder import REPORT
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import given


def layers_command(parsed: Namespace) -> int:
    """Print the candidates, and every other node with its reason."""
    from precision_bisect.commandline.listing import as_json, as_text
    from precision_bisect.graphs.load import load_model
    from precision_bisect.graphs.ort import use_custom_ops
    from precision_bisect.graphs.typed.pinning import pin_formless
    from precision_bisect.pipeline.reopening import model_of

    settings = EngineSettings(**given(parsed, EngineSettings))
    use_custom_ops(settings.ort_custom_ops)
    pair = Options(model=parsed.model, **given(parsed, Options)).pair
    path = model_of(parsed.model, "name the model") if parsed.model.is_dir() else parsed.model
    table = pin_formless(load_model(path, apart=True), pair).table
    sys.stdout.write(as_json(table) if parsed.json else as_text(table))
    return ExitCode.OK


def verify_command(parsed: Namespace) -> int:
    """Build the found plan once, print what the engine honours, and put it into the report."""
    flags = given(parsed, EngineSettings)
    from precision_bisect.pipeline.verifying.verify import verify

    verified = verify(parsed.model, parsed.plan, flags, parsed.backend, parsed.build_memory)
    answer = verified.found
    text = answer.to_json() if parsed.json else answer.to_text(verbose=parsed.verbose)
    sys.stdout.write(text)
    if verified.trouble:
        complain(f"warning: {verified.trouble}")
    if verified.run is not None:
        _report_again(verified.run)
    return answer.exit_code


def _report_again(run: Path) -> None:
    """Draw the report of a run once more, where it has one; a failure is a warning."""
    from precision_bisect.plugins import REPORTS, load

    if not (run / REPORT).exists():
        return
    try:
        load(REPORTS, "html")(run, None)
    except PrecisionBisectError as error:
        complain(f"warning: {REPORT} stays as it was: {error.one_line()}")


def target_command(parsed: Namespace) -> int:
    """Write the folder for a machine without this tool, or judge what came back in it."""
    flags = given(parsed, EngineSettings)
    from precision_bisect.pipeline.on_target.exchange import (
        comparator_of,
        read_manifest,
        read_subject,
    )
    from precision_bisect.pipeline.on_target.target_folder import read_target, record, write_target

    # How the folder was typed is settled since it was written; a flag cannot change it.
    if parsed.read is not None:
        flags = {**flags, "typing": read_manifest(parsed.read).typing}
    subject = read_subject(parsed.run, flags)
    comparator = comparator_of(subject.case, parsed.check)
    if parsed.write is not None:
        written = write_target(subject, parsed.write, comparator)
        sys.stdout.write(written.to_json() if parsed.json else written.to_text())
        return ExitCode.OK
    outcome = read_target(subject, parsed.read, comparator)
    sys.stdout.write(outcome.to_json() if parsed.json else outcome.to_text())
    # The verdict is printed by now: a run folder that cannot be written costs its record alone.
    try:
        record(outcome, subject.run)
    except RunFolderError as error:
        complain(f"warning: not recorded: {error.one_line()}")
    else:
        _report_again(subject.run)
    return outcome.exit_code


def export_command(parsed: Namespace) -> int:
    """Write the files for deployment again."""
    flags = given(parsed, EngineSettings)
    point = given(parsed, Options).get("export_point")
    from precision_bisect.commandline.export_command import export

    summary = export(parsed.model, parsed.plan, parsed.out, flags, point)
    sys.stdout.write(summary.to_json() if parsed.json else summary.to_text())
    return summary.exit_code


def status_command(parsed: Namespace) -> int:
    """Print what a run is doing, or how the jobs of a batch stand."""
    if _batch_shown(parsed):
        return ExitCode.OK
    from precision_bisect.runs.monitoring.run_watch import look, status_text

    progress = look(_last_run(parsed.run))
    sys.stdout.write(progress.to_json() if parsed.json else status_text(progress))
    return ExitCode.OK


def _last_run(named: Path) -> Path:
    """Return what `last_run` does; it is imported only when it is needed."""
    from precision_bisect.runs.results.saved import last_run

    return last_run(named)


def _batch_shown(parsed: Namespace) -> bool:
    """Print the batch that a folder holds; return whether it holds one."""
    from precision_bisect.commandline.batch.batch_record import BATCH, read_batch

    if not os.path.isfile(parsed.run / BATCH):  # noqa: PTH113 - never raises
        return False
    batch = read_batch(parsed.run)
    if batch is not None:
        sys.stdout.write(batch.to_json() if parsed.json else batch.to_text(parsed.run))
    return batch is not None


def report_command(parsed: Namespace) -> int:
    from precision_bisect.plugins import REPORTS, load

    written = load(REPORTS, "html")(_last_run(parsed.run), parsed.out)
    sys.stdout.write(
        json.dumps({"report": str(written)}) + "\n" if parsed.json else f"{written}\n"
    )
    return ExitCode.OK


def explain_command(parsed: Namespace) -> int:
    """Print why layers need the precision, and what to change."""
    options = to_explain_options(parsed)
    plain = options == Options(model=parsed.model, backend="emulated")
    if parsed.model.is_dir() and not plain:
        raise _told_already(parsed.model)
    if plain and not (parsed.layers or parsed.worst != WORST or parsed.model.is_dir()):
        try:
            options = replace(options, model=_last_run(parsed.model))
            if options.model.is_dir():
                from precision_bisect.exports.finished import result_of
                from precision_bisect.graphs.load import load_model

                # A model that was exported again may need other layers.
                result_of(options.model, load_model(parsed.model))
                tell(f"From the last run, {options.model}; --inputs has the model looked at anew")
        except RunFolderError as error:
            options = replace(options, model=parsed.model)
            tell(f"{error.message}, so the model is looked at with made-up inputs")
    # Only now: what is told already, or refused, need not wait for these imports.
    from precision_bisect.commandline.explain_command import explain
    from precision_bisect.explaining.advice.text import advice_text
    from precision_bisect.plugins import REPORTS, load

    with load(REPORTS, "terminal")(sys.stdout, sys.stderr) as report:
        findings = explain(options, parsed.layers, parsed.worst, report)
    sys.stdout.write(
        findings.to_text() if parsed.json else advice_text(findings, verbose=parsed.verbose)
    )
    return ExitCode.OK


def _told_already(run: Path) -> UsageError:
    return UsageError(
        f"{run} is a run, which is told as it was", "leave the other flags out, or name the model"
    )


def curve_command(parsed: Namespace) -> int:
    """Draw the curve alone; of a run, print what it has drawn."""
    if os.path.isdir(parsed.model):  # noqa: PTH112 - never raises
        if to_options(parsed) != Options(model=parsed.model, until="curve"):
            raise _told_already(parsed.model)
        parsed.run = parsed.model
        return show_command(parsed, whole=True)
    return search(parsed, to_options(parsed))


def doctor_command(parsed: Namespace) -> int:
    """Print what is installed and what works; write it, and what a run has left, if asked."""
    if parsed.run is not None and parsed.bundle is None:
        raise UsageError("doctor looks at a run only for an archive", "add --bundle")
    from precision_bisect.commandline.doctor import examine, with_bundle, write_bundle

    examination = examine()
    if parsed.bundle is None:
        sys.stdout.write(examination.to_json() if parsed.json else examination.to_text())
        return ExitCode.OK
    run = None if parsed.run is None else _last_run(parsed.run)
    bundle = write_bundle(parsed.bundle, run, examination)
    sys.stdout.write(with_bundle(examination, bundle) if parsed.json else bundle.to_text())
    return ExitCode.OK


def batch_command(parsed: Namespace) -> int:
    from precision_bisect.commandline.batch.batch_record import written_line
    from precision_bisect.commandline.batch.batch_run import as_shell, dry_run, run_batch
    from precision_bisect.commandline.ci_reports import tell_github_of_jobs

    options = BatchOptions(jobs_file=parsed.jobs, **given(parsed, BatchOptions))
    if parsed.dry_run:
        planned = dry_run(options, tell)
        sys.stdout.write(planned.to_json() if parsed.json else as_shell(planned))
        failed = [job for job in planned.jobs if job.message]
        for job in failed:
            complain(str(job))
        if planned.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.USAGE if failed else ExitCode.OK
    batch = run_batch(options, tell, (lambda line: None) if parsed.json else _show)
    sys.stdout.write(batch.to_json() if parsed.json else written_line(options.folder))
    if parsed.github:
        tell_github_of_jobs(batch)
    return batch.exit_code


def _show(line: str) -> None:
    """Print a line at once: a night is long."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show_command(parsed: Namespace, *, whole: bool = False) -> int:
    """Print the final screen of a run again, `whole` or not, or how the jobs of a batch stand."""
    if _batch_shown(parsed):
        return ExitCode.OK
    from precision_bisect.plugins import REPORTS, load
    from precision_bisect.runs.ledger.ledger_reader import recorded_trials
    from precision_bisect.runs.results.saved import read_saved

    saved = read_saved(_last_run(parsed.run))
    if saved.outdated:
        complain("warning: the run has gone on since, see `precision-bisect status`")
    if parsed.json:
        sys.stdout.write(saved.result.to_text())
    else:
        trials = recorded_trials(saved.path.parent) if parsed.explain_search else ()
        report = load(REPORTS, "terminal")(
            sys.stdout, sys.stderr, explain=whole or parsed.explain_search
        )
        report.show(saved.result, saved.model, trials)
    return ExitCode.OK


def compare_command(parsed: Namespace) -> int:
    """Print what changed between two runs, or two batches."""
    from precision_bisect.commandline.batch.batch_record import compare_batches
    from precision_bisect.plugins import REPORTS, load
    from precision_bisect.runs.comparing.changes import compare, read_side

    # Two batches are known by their files; everything else is taken for runs.
    batches = compare_batches(parsed.before, parsed.after)
    if batches is not None:
        sys.stdout.write(batches.to_json() if parsed.json else batches.to_text())
        return ExitCode.OK if batches.same else ExitCode.NO_PLAN
    comparison = compare(
        *(read_side(_last_run(folder)) for folder in (parsed.before, parsed.after))
    )
    if parsed.json:
        sys.stdout.write(comparison.to_text())
    else:
        load(REPORTS, "comparison")(comparison, sys.stdout)
    return ExitCode.OK if comparison.same else ExitCode.NO_PLAN


COMMANDS: Mapping[str, tuple[Callable[[], Parser], Callable[[Namespace], int]]] = {
    "batch": (batch_parser, batch_command),
    "compare": (compare_parser, compare_command),
    "curve": (curve_parser, curve_command),
    "doctor": (doctor_parser, doctor_command),
    "explain": (explain_parser, explain_command),
    "export": (export_parser, export_command),
    "layers": (layers_parser, layers_command),
    "report": (report_parser, report_command),
    "show": (show_parser, show_command),
    "status": (status_parser, status_command),
    "target": (target_parser, target_command),
    "verify": (verify_parser, verify_command),
}
"""The parser of each command, and what takes the parsed arguments."""
