"""What a backend says of itself, asked in a child process, since loading it may crash."""

from typing import TYPE_CHECKING

from precision_bisect.errors import PluginError
from precision_bisect.isolation.described import Survey
from precision_bisect.isolation.evaluator_spec import EvaluatorSpec
from precision_bisect.options import Options

if TYPE_CHECKING:
    from precision_bisect.isolation.slot import Slot


def isolated(options: Options) -> bool:
    """Tell whether trials run in child processes; `options` name the backend."""
    if options.isolate == "auto":
        limited = options.trial_timeout_s is not None or options.trial_memory_mib is not None
        return limited or options.backend != "emulated"
    return options.isolate == "always"


def surveyed(spec: EvaluatorSpec, slot: "Slot") -> Survey:
    """Return what the spec's backend says of itself, asked in the child of a slot.

    The spec is saved as the slot's. The child keeps model and backend for the trials; it is ended
    where this raises: PluginError if asking has cost the child, RunFolderError, and what the
    backend does.
    """
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.isolation import child
    from precision_bisect.isolation.slot import Death

    spec.save(slot.spec)
    try:
        return slot.call_bare(child.look, slot.spec)
    except Death as death:
        slot.end()
        raise PluginError(
            f"{spec.options.backend} cannot be used: {death.outcome.message}",
            "`precision-bisect doctor` says what works here",
        ) from death
    except BaseException:
        slot.end()
        raise
