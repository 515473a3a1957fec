"""``python -m tefl``."""

import sys

from tefl.cli import main

if __name__ == "__main__":
    sys.exit(main())
