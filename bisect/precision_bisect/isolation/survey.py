"""What a backend says of itself, asked in a child process, since loading it may crash."""

from pathlib import Path

from precision_bisect.errors import PluginError
from precision_bisect.isolation.described import Survey
from precision_bisect.isolation.evaluator_spec import EvaluatorSpec
from precision_bisect.options import Options


def isolated(options: Options) -> bool:
    """Tell whether trials run in child processes; `options` name the backend."""
    if options.isolate == "auto":
        limited = options.trial_timeout_s is not None or options.trial_memory_mib is not None
        return limited or options.backend != "emulated"
    return options.isolate == "always"


def surveyed(spec: EvaluatorSpec, work: Path) -> Survey:
    """Return what the spec's backend says of itself, asked in a child on the first GPU.

    `work` is a folder for files. Raises PluginError if that ends the child, and RunFolderError.
    """
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.isolation import child
    from precision_bisect.isolation.slot import Death, Slot

    path = work / "survey.spec"
    spec.save(path)
    gpus = spec.options.gpus
    slot = Slot(spec=path, folder=work / "survey", gpu=gpus[0] if gpus else None)
    try:
        return slot.call_bare(child.look, path)
    except Death as death:
        raise PluginError(
            f"{spec.options.backend} cannot be used: {death.outcome.message}",
            "`precision-bisect doctor` says what works here",
        ) from death
    finally:
        slot.end()
