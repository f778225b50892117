"""What a backend says of itself, asked in a child process, since loading it may crash."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from precision_bisect.errors import PluginError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Survey
from precision_bisect.options import Options

if TYPE_CHECKING:
    from precision_bisect.execution.slot import Slot


R = TypeVar("R")


def isolated(options: Options) -> bool:
    """Tell whether trials run in child processes; `options` name the backend."""
    if options.isolate == "auto":
        limited = options.trial_timeout_s is not None or options.trial_memory_mib is not None
        return limited or options.backend != "emulated"
    return options.isolate == "always"


def surveyed(spec: EvaluatorSpec, slot: "Slot") -> Survey:
    """Return what the spec's backend says of itself, asked in the child of a slot.

    The spec is saved as the slot's. The child keeps model and backend for the trials. Raises as
    `asked` does, and RunFolderError.
    """
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.execution import child

    spec.save(slot.spec)
    return asked(slot, spec.options.backend, child.backend_facts, slot.spec)


def picked(options: Options, slot: "Slot") -> tuple[str, str]:
    """Return what `pick_backend` does, asked in the child of a slot; raises as `asked` does."""
    from precision_bisect.execution import child

    return asked(slot, f"--backend {options.backend}", child.pick, options)


def asked(slot: "Slot", what: str, function: Callable[..., R], argument: object) -> R:
    """Return what a function says in the child of a slot; the child is ended where it raises.

    Raises PluginError where that costs the child, since `what` cannot be used then.
    """
    from precision_bisect.execution.slot import Death

    try:
        return slot.call_bare(function, argument)
    except Death as death:
        slot.end()
        raise PluginError(
            f"{what} cannot be used: {death.outcome.message}",
            "`precision-bisect doctor` says what works here",
        ) from death
    except BaseException:
        slot.end()
        raise
