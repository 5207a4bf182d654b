"""A server for one model. Only `app` and `server` import starlette and uvicorn, which the extra `serve` installs."""
