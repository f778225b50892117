"""The user's own settings of a build: a script that changes the builder's configuration.

It is the script of Polygraphy's `--trt-config-postprocess-script`, for flags of deployed engines:
version or hardware compatibility, refit, weight streaming, DLA.
"""

from collections.abc import Callable
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.machine.user_scripts import ScriptFailed, load_function, running_script
from precision_bisect.settings.reading import CONFIG_SCRIPT, script_and_function


def with_script(config: Callable[..., Any], script: str | None) -> Callable[..., Any]:
    """Return a callable that makes the same configuration and lets the script change it, if any.

    Raises UsageError if the script does not run or lacks the function and, when a configuration is
    made, if the function fails.
    """
    if script is None:
        return config
    from polygraphy.backend.trt import PostprocessConfig

    path, name = script_and_function(script)
    function = load_function(path, name)

    def changed(builder: Any, network: Any, made: Any) -> None:
        try:
            with running_script(path):
                function(builder, network, made)
        except ScriptFailed as failed:
            raise UsageError(
                f"{CONFIG_SCRIPT} {path.name}: {name}() failed: {failed}",
                "it is given the builder, the network and the configuration",
            ) from failed

    loader: Callable[..., Any] = PostprocessConfig(config, changed)
    return loader
