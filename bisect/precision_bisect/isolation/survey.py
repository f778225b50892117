"""What a backend says of itself, asked in a child process: that may cost the process, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import PluginError
from precision_bisect.isolation.kit import Kit
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.protocols import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A backend's words on itself; see `protocols.Described`."""

    name: str
    emulated: bool
    said: Mapping[str, str]
    stuck: Mapping[LayerName, str]

    def versions(self) -> Mapping[str, str]:
        """Return versions and device names that results depend on."""
        return self.said

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low, each with the reason."""
        return self.stuck


def survey(backend: Backend) -> Survey:
    """Return what the backend says of itself."""
    return Survey(
        name=backend.name,
        emulated=backend.emulated,
        said=backend.versions(),
        stuck=backend.unbuildable(),
    )


def isolated(options: Options) -> bool:
    """Tell whether trials run in child processes; `options` name the backend."""
    if options.isolate == "auto":
        limited = options.trial_timeout_s is not None or options.trial_memory_mib is not None
        return limited or options.backend != "emulated"
    return options.isolate == "always"


def surveyed(kit: Kit, work: Path, options: Options) -> Survey:
    """Return what the kit's backend says of itself in a child process on the first GPU.

    `work` is a folder for files. Raises PluginError where that costs the process, and
    RunFolderError.
    """
    # Loky and psutil are for runs that need them.
    from precision_bisect.isolation import child
    from precision_bisect.isolation.slot import Death, Slot

    path = work / "survey.kit"
    kit.save(path)
    gpu = options.gpus[0] if options.gpus else None
    slot = Slot(kit=path, folder=work / "survey", gpu=gpu)
    try:
        return slot.call_bare(child.look, path)
    except Death as death:
        raise PluginError(
            f"{options.backend} cannot be used: {death.outcome.message}",
            "`precision-bisect doctor` says what works here",
        ) from death
    finally:
        slot.end()
