"""The shipped specs are the published models: the same numbers as other people's code, from the same weights."""
