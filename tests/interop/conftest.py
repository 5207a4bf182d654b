from fixtures import catalogue, one_thread, rounding  # noqa: F401
