"""The commands that this distribution adds to `tfkit`."""
