"""A server for one model. Only `app`, `connection` and `listen` import starlette and uvicorn,
which the extra `serve` installs."""
