"""Running commands in this process."""

from command_line import installed, no_lines_of_progress, small, tfkit, typed, usual_width
from forced import decoded, gpu
from graph_stand_in import recordings_on_cpu

__all__ = ["decoded", "gpu", "installed", "no_lines_of_progress", "recordings_on_cpu", "small", "tfkit", "typed", "usual_width"]
