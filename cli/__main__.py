"""`python -m gymnast.cli`, for programs that start Python modules, such as `accelerate launch -m gymnast.cli train`."""

import sys

from .main import main

sys.exit(main())
