from fixtures import catalogue, one_thread  # noqa: F401
