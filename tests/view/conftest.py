"""Running commands in this process."""

from command_line import tfkit, usual_width

__all__ = ["tfkit", "usual_width"]
