"""`--backend remote`: plans are built and run by trtexec on other machines, one call per build."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.remote.ssh_host import Host, Reached
from precision_bisect.errors import UsageError
from precision_bisect.precisions import LowName
from precision_bisect.settings.engine_settings import EngineSettings

NAME = "remote"
_HOST = re.compile(r"(?!-)[\w.@:%/\[\]-]{1,255}")
_TOOL = re.compile(r"[\w.+-]+|/.+", re.S)
# Settings that only a library in this process could obey.
_LOCAL = ("plugins", "config_script", "compute_capability")


class RemotePlugin:
    """See `BackendPlugin`."""

    options: Sequence[str] = ("host", "trtexec", "folder", "ssh-config")

    def availability(self) -> Availability:
        """Return whether there is an ssh; hosts are asked once they are named."""
        ssh = shutil.which("ssh")
        why = "trtexec on the hosts of --backend-option host=" if ssh else "there is no ssh"
        return Availability(name=NAME, usable=bool(ssh), why=why, builds=bool(ssh))

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model. Raises UsageError; reaches nobody."""
        from precision_bisect.backends.remote.remote_backend import RemoteBackend

        settings = task.options.engine
        if task.options.looped:
            raise UsageError(
                f"--backend {NAME} runs no loop: trtexec runs each sample once",
                "leave out --steps and --loop, or search where the library is installed",
            )
        for name in _LOCAL:
            if getattr(settings, name):
                flag = name.replace("_", "-")
                raise UsageError(f"--backend {NAME} has no {flag}", "leave it out")
        if settings.typing == "weak":
            raise UsageError(f"--backend {NAME} types strongly", "leave out --typing weak")
        if task.options.keep_engines:
            raise UsageError(
                f"--backend {NAME} leaves engines where they are", "leave out --keep-engines"
            )
        hosts = _hosts(settings.backend_options, task.work)
        return lambda model: RemoteBackend(
            task.writer(model),
            settings,
            hosts,
            task.shapes_for(model),
            task.samples,
            task.work,
            mixed=task.options.mixed_gpus,
        )

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Return how `verify` builds."""
        return Builder(name=NAME, remark="trtexec over ssh", settings=settings)


def _hosts(options: Mapping[str, str], work: Path) -> Sequence[Host]:
    names = [name for name in options.get("host", "").split(",") if name]
    if not names:
        raise UsageError(f"--backend {NAME} needs a host", "give --backend-option host=user@board")
    for name in names:
        # ssh takes a name that begins with a dash for an option.
        if not _HOST.fullmatch(name) or names.count(name) > 1:
            raise UsageError(
                f"host {name!r} is no name of a host, or occurs twice",
                "write host=user@board, or user@one,user@two",
            )
    tool, config = options.get("trtexec", "trtexec"), options.get("ssh-config", "")
    if not _TOOL.fullmatch(tool):
        raise UsageError(
            f"trtexec={tool} is no absolute path",
            "give one, such as /usr/src/tensorrt/bin/trtexec",
        )
    if config and not Path(config).is_file():
        raise UsageError(f"ssh-config={config} is no file", "name one, as to ssh -F")
    reached = Reached(
        tool=tool,
        folder=options.get("folder", ""),
        config=str(Path(config).absolute()) if config else "",
    )
    return [
        Host(name=name, reached=reached, work=work, number=number)
        for number, name in enumerate(names)
    ]


REMOTE = RemotePlugin()
