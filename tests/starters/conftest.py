"""Running commands in this process."""

from command_line import no_lines_of_progress, tfkit, usual_width

__all__ = ["no_lines_of_progress", "tfkit", "usual_width"]
