"""`python -m tfkit_fused`."""

import sys

from .command import main

sys.exit(main())
