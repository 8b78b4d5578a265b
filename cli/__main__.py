"""`python -m gymnast.cli` is the command `gymnast`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
