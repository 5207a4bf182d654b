"""Train each recipe with each seed. Several runs go on at once; each is a process with one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalogue import load_catalogue
from ..errors import Diagnostic, InputError, StoreError
from ..errors.arguments import check_whole
from ..files import FileModel, make_folders, read_model, write_whole
from ..train.run_files import locked
from .candidates import Candidate, Loaded, load_candidates
from .results import CandidateResult, Comparison, RunResult

if TYPE_CHECKING:
    from .worker import Job

MARK = "comparison.json"
"""The file that shows that a directory holds a comparison."""
MAX_SEED = 2**32 - 1
MOST_SEEDS = 10_000
_RESULT_BYTES = 100_000


class RecipeDigest(FileModel):
    """The digest of the recipe whose runs a directory holds."""

    digest: str


@dataclass(frozen=True)
class Run:
    """One run of a comparison: its recipe, its seed, and where it is kept."""

    loaded: Loaded
    seed: int
    directory: Path

    @property
    def result(self) -> Path:
        """The file of the result, which exists once the run is finished."""
        return self.directory.with_name(f"{self.directory.name}.json")


def worker_command() -> list[str]:
    """The command line of the process of one run."""
    return [sys.executable, "-m", f"{__package__}.worker"]


@dataclass
class Workers:
    """The processes that train. `stop` ends them all; each saves a checkpoint first."""

    device: str
    processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stopping: bool = False

    def run(self, run: Run) -> str:
        """Train; returns the error, or an empty text."""
        from .worker import Job

        if self.stopping:
            return "it was stopped"
        overrides = [*run.loaded.candidate.overrides, f"seed={run.seed}"]
        job = Job(
            recipe=run.loaded.candidate.recipe, overrides=overrides, directory=str(run.directory), result=str(run.result),
            digest=run.loaded.digest, device=self.device,
        )  # fmt: skip
        return self.train(job)

    def train(self, job: Job) -> str:
        """Train in a process of its own; returns the error, or an empty text."""
        process = subprocess.Popen(
            worker_command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )  # fmt: skip
        self.processes.add(process)
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(job.model_dump_json().encode() + b"\n")
            process.stdin.flush()  # the pipe stays open: the worker ends when it is closed
            error = process.stderr.read().decode(errors="replace").strip()
        except BrokenPipeError:
            error = process.stderr.read().decode(errors="replace").strip()
        finally:
            code = process.wait()
            process.stderr.close()
            process.stdin.close()
            self.processes.discard(process)
        return "" if code == 0 else _failure(code, error)

    def stop(self) -> None:
        self.stopping = True
        for process in list(self.processes):
            process.terminate()


def _failure(code: int, error: str) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}; the same command resumes it"
    last = error.splitlines()[-1] if error else f"its process ended with code {code}"
    return last[:2000]


def compare_recipes(
    recipes: Sequence[str | Path | Candidate],
    directory: str | Path,
    *,
    seeds: Sequence[int] = range(5),
    workers: int | None = None,
    device: str = "cpu",
    on_run_end: Callable[[str, int, RunResult | str], None] | None = None,
) -> Comparison:
    """Train each recipe with each seed, and compare the best validation scores.

    Finished runs in the directory are not repeated, and interrupted ones are resumed. If a run fails, the others continue.

    Args:
        recipes: The files of the recipes, or objects of `Candidate` with changes; the others are compared with the first.
        directory: The directory of the runs: `NAME/seed-N`.
        seeds: The seeds. Rows that a recipe holds out are chosen by the seed.
        workers: How many runs at once, with one thread each; as many as there are processor cores by default.
        device: `cpu`, or `cuda`, with one run at once by default.
        on_run_end: Called after each run with the name of the recipe, the seed, and the result or the error.

    Returns:
        The scores of all runs.

    Raises:
        SpecError: A recipe or its spec is wrong.
        InputError: The recipes cannot be compared, or the directory holds runs of other recipes.
        StoreError: The directory cannot be written, or a result in it is damaged.
    """
    candidates = [recipe if isinstance(recipe, Candidate) else Candidate(os.fspath(recipe)) for recipe in recipes]
    if not candidates or not seeds:
        raise InputError(Diagnostic("TFK160", "a comparison needs a recipe and a seed"))
    if len(seeds) > MOST_SEEDS:
        raise InputError(Diagnostic("TFK160", f"{len(seeds):,} seeds are more than the {MOST_SEEDS:,} of a comparison"))
    for seed in seeds:
        check_whole("a seed", seed, 0, MAX_SEED, "TFK160")
    if workers is not None:
        check_whole("workers", workers, code="TFK160")
    if len(set(seeds)) < len(seeds):
        raise InputError(Diagnostic("TFK160", "a seed is there twice", "name each seed once"))
    loaded = load_candidates(candidates, load_catalogue())
    place = Path(directory)
    runs = [Run(loaded_recipe, seed, place / loaded_recipe.name / f"seed-{seed}") for seed in seeds for loaded_recipe in loaded]
    with _locked_directory(place, loaded):
        finished = {(run.loaded.name, run.seed): result for run in runs if (result := _finished(run))}
        failures: dict[tuple[str, int], str] = {}

        def ended(run: Run, error: str) -> None:
            key = (run.loaded.name, run.seed)
            result = None if error else _finished(run)
            if result is None:
                failures[key] = error or "it wrote no result"
            else:
                finished[key] = result
            if on_run_end is not None:
                on_run_end(*key, result or failures[key])

        waiting = [run for run in runs if (run.loaded.name, run.seed) not in finished]
        _train(waiting, workers or (1 if device.startswith("cuda") else len(os.sched_getaffinity(0))), Workers(device), ended)
    return Comparison(
        loaded[0].recipe.validation.metric,
        tuple(seeds),
        tuple(
            CandidateResult(
                loaded_recipe.name,
                {seed: finished[loaded_recipe.name, seed] for seed in seeds if (loaded_recipe.name, seed) in finished},
                {seed: failures[loaded_recipe.name, seed] for seed in seeds if (loaded_recipe.name, seed) in failures},
                place / loaded_recipe.name,
            )
            for loaded_recipe in loaded
        ),
    )


def _train(waiting: Sequence[Run], workers: int, processes: Workers, ended: Callable[[Run, str], None]) -> None:
    """Train all runs; `ended` is called in this thread. An exception, such as KeyboardInterrupt, stops the processes."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            futures: dict[Future[str], Run] = {pool.submit(processes.run, run): run for run in waiting}
            for future in as_completed(futures):
                ended(futures[future], future.result())
        except BaseException:
            processes.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _finished(run: Run) -> RunResult | None:
    """The result of a run; None if it has none. Raises InputError for the result of another recipe."""
    if not run.result.exists():
        return None
    result = read_model(run.result, RunResult, _RESULT_BYTES)
    if result.digest != run.loaded.digest:
        raise _other_recipe(run.result)
    return result


@contextmanager
def _locked_directory(place: Path, loaded: Sequence[Loaded]) -> Iterator[None]:
    """Create and lock the directory; check that unfinished runs in it belong to these recipes."""
    try:
        if place.exists() and not (place / MARK).is_file() and any(place.iterdir()):
            message = f"{place} exists and holds no comparison of recipes"
            raise StoreError(Diagnostic("TFK080", message, "name another --directory"))
        make_folders(place)
        if not (place / MARK).is_file():
            write_whole(place / MARK, '{"comparison": 1}\n')
        for loaded_recipe in loaded:
            (place / loaded_recipe.name).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        message = f"{place} cannot be written: {reason.strerror}"
        raise StoreError(Diagnostic("TFK081", message, "name another --directory")) from None
    with locked(place):
        for loaded_recipe in loaded:
            path = place / loaded_recipe.name / "recipe.digest.json"
            if path.exists():
                if read_model(path, RecipeDigest, _RESULT_BYTES).digest != loaded_recipe.digest:
                    raise _other_recipe(path)
            else:
                write_whole(path, RecipeDigest(digest=loaded_recipe.digest).model_dump_json() + "\n")
        yield


def _other_recipe(path: Path) -> InputError:
    message = f"{path} belongs to other settings, another spec or other data than the recipe has now"
    return InputError(Diagnostic("TFK160", message, "name another --directory, or remove the old runs"))
