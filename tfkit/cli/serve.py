"""`tfkit serve`: a model behind HTTP."""

from __future__ import annotations

import json
from typing import Any

import click

from ..errors import Diagnostic, InputError
from .options import READ, common, cpu_table_option, placement, precision_option, whole
from .packages import TEXT, import_torch, need_packages
from .search_args import (
    EXTRA_LENGTH,
    SAVED_SEARCH,
    check_workers,
    cuda_graphs_option,
    lengths_of,
    saved_search_of,
    search_of,
    shortlist_option,
    workers_of,
    workers_option,
)

BEAMS = 5
EPILOG = f"""\b
tfkit serve MODEL --port 8000
curl -H 'Content-Type: application/json' -d '{{"texts": ["a dog runs"]}}' \\
     http://127.0.0.1:8000/translate

{SAVED_SEARCH}\b
/translate, /generate, /classify or /fill, whichever the model does; /health,
/ready and /metrics. SIGTERM: what was sent is answered, no more is taken.
"""


def _port(value: str | int) -> int:
    port = whole(value, 0)
    if port > 65535:
        raise ValueError(f"a port is 0 to 65535, `{value}` is written")
    return port


def _milliseconds(value: str | int) -> int:
    return whole(value, 0)


@click.command("serve", epilog=EPILOG)
@click.argument(
    "models", nargs=-1, required=True, type=READ, metavar="MODEL...",
    help="A directory that `tfkit train` wrote, or a model in it; several translate together.",
)  # fmt: skip
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=_port, metavar="N", default=8000, help="Port; 0 takes a free one.")
@click.option("--beams", type=whole, metavar="N", help=f"Beams of a translation; 1 is greedy (default: {BEAMS}).")
@click.option(
    "--extra-length", type=whole, metavar="N",
    help=f"Tokens of a translation more than the source at most (default: {EXTRA_LENGTH}).",
)  # fmt: skip
@click.option("--max-length", type=whole, metavar="N", default=1024, help="Longest text, in tokens; longer ones are refused.")
@click.option(
    "--max-characters", type=whole, metavar="N", help="Longest text, in characters (default: 16 a token of --max-length)."
)
@click.option("--max-tokens", type=whole, metavar="N", default=1024, help="New tokens that a request may ask for at most.")
@click.option("--max-beams", type=whole, metavar="N", default=16, help="Beams or samples that a request may ask for at most.")
@click.option("--max-texts", type=whole, metavar="N", default=64, help="Texts of a request at most.")
@click.option("--max-body", type=whole, metavar="BYTES", default=1 << 20, help="Bytes of a request at most.")
@click.option("--max-requests", type=whole, metavar="N", default=256, help="Requests answered at once at most.")
@click.option("--max-connections", type=whole, metavar="N", default=512, help="Connections open at once at most.")
@click.option("--max-queue", type=whole, metavar="N", default=2048, help="Texts that wait at most.")
@click.option("--max-batch", type=whole, metavar="N", default=256, help="Texts given to the model at once.")
@click.option("--max-wait-ms", type=_milliseconds, metavar="MS", default=0, help="Wait for more texts before a batch.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch of the search.")
@click.option("--dry-run", is_flag=True, help="Load the model, print what would be served, and stop.")
@cuda_graphs_option
@workers_option
@shortlist_option
@precision_option
@placement
@cpu_table_option
@common
def command(
    models: tuple[str, ...], host: str, port: int, beams: int | None, extra_length: int | None, max_length: int,
    max_characters: int | None,
    max_tokens: int, max_beams: int, max_texts: int, max_body: int, max_requests: int, max_connections: int,
    max_queue: int, max_batch: int,
    max_wait_ms: int, batch_tokens: int, dry_run: bool, cuda_graphs: bool, workers: int | None, shortlist: bool,
    precision: str, device: str,
    backend: list[str] | None, auto_table: str | None, cpu_table: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Answer requests over HTTP with a trained model.

    Texts that wait are computed in one batch as soon as the model is free. A text gets the result that it gets alone. There is
    no authentication and no encryption: put a proxy in front of the server before other machines may reach it.
    """
    need_packages("serve", "starlette", "uvicorn", "prometheus_client")
    need_packages("train", *TEXT)
    if max_queue < max_texts:
        message = f"--max-queue {max_queue} is smaller than --max-texts {max_texts}"
        raise InputError(Diagnostic("TFK090", message, "a request of that many texts would never have room"))
    import_torch()
    from ..serve.app import Server
    from ..serve.limits import Limits
    from ..serve.listen import serve
    from ..serve.tasks import Generate, Translate, load_task
    from .device import chosen_device, placed, use_cpu_table

    saved = saved_search_of(models[0])
    saved = None if saved is not None and saved.kind == "sample" else saved  # a translation does not depend on its batch
    search = search_of(
        BEAMS, saved, beams=beams, n_best=1, penalty=None, alpha=None, sample=False, temperature=None, top_k=None, top_p=None,
        seed=None, **lengths_of(saved, extra_length),
    )  # fmt: skip
    limits = Limits(
        body=max_body, texts=max_texts, length=max_length, new_tokens=max_tokens, beams=max_beams, requests=max_requests,
        characters=16 * max_length if max_characters is None else max_characters, connections=max_connections,
    )  # fmt: skip
    device = chosen_device(device, precision != "float32" or cpu_table or (workers or 1) > 1)
    use_cpu_table(cpu_table, device)
    place: dict[str, Any] = {"precision": precision, **placed(device, backend, auto_table)}
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "workers": workers_of(workers, device)}
    options |= {"cuda_graphs": cuda_graphs, "shortlist": shortlist}
    task = load_task(models, limits, search, **options, **place)
    if isinstance(task, (Translate, Generate)):
        check_workers(workers, device, task.model)
    if dry_run:
        _announce(None, task.path, as_json)
        return 0
    server = Server(
        task, max_batch=max_batch, batch_tokens=max_batch * max_length, max_queue=max_queue, max_wait=max_wait_ms / 1e3
    )
    serve(server, host, port, lambda url: _announce(url, task.path, as_json))
    return 0


def _announce(url: str | None, path: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url, "path": path}, allow_nan=False), flush=True)
    else:
        print(f"POST {url or ''}{path}", flush=True)
