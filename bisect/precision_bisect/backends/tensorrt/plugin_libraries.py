"""Libraries of TensorRT plugins: loaded once a process, for its parser and its runtime alike.

A library registers its plugins as it is loaded (REGISTER_TENSORRT_PLUGIN), as for Polygraphy's
`--plugins` and trtexec's `--staticPlugins`.
"""

from collections.abc import Sequence
from pathlib import Path

from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.errors import PluginError
from precision_bisect.settings.reading import PLUGINS


def load_plugin_libraries(flavour: Flavour, paths: Sequence[Path]) -> None:
    """Load the libraries. Raises PluginError for one that does not load."""
    if not paths:
        return
    with collected(flavour):
        from polygraphy.backend.trt import load_plugins

        for path in paths:
            try:
                load_plugins(plugins=[str(path.absolute())])
            except OSError as error:
                raise PluginError(
                    f"{PLUGINS} {path} does not load: {error}",
                    f"it must be built for {flavour.name} {flavour.version}, with what it needs "
                    "on LD_LIBRARY_PATH",
                ) from error
