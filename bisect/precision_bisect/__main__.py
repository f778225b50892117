"""`python -m precision_bisect`, and the installed command."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it in one line while it is imported, too."""
    try:
        from precision_bisect.machine.interrupts import interrupt

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from precision_bisect.commandline.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("precision-bisect: interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    return run()


if __name__ == "__main__":
    sys.exit(main())
