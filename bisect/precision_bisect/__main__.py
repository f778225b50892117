"""`python -m precision_bisect`."""

import sys

from precision_bisect.commandline.main import main

if __name__ == "__main__":
    sys.exit(main())
