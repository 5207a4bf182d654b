"""The commands that this distribution adds to `tfkit`, and the type of option that two of them share."""


def seconds(value: str | float) -> float:
    """A time limit in seconds, from 0.1 to a day."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 86400:
        raise ValueError(f"seconds from 0.1 to 86400 are expected, `{value}` is written")
    return number
