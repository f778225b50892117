"""`python -m precision_bisect`."""

import sys

from precision_bisect.cli import main

if __name__ == "__main__":
    sys.exit(main())
