"""Lets these tests run from the source tree, without the plugin being installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
