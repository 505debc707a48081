"""Where a run's loop lives, and how a caller waits for it, stops it and hears of it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.nissa.making import wait_until
from tests.simic.training.runs import lines_of

from esper.leyline.errors import InterruptedRunError
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("plain"), n_episodes=1).run_dir


async def _run_inside(directory: Path) -> TrainingResult:
    return tiny_run(directory, n_episodes=1)


def _with_asyncio(directory: Path) -> TrainingResult:
    return asyncio.run(_run_inside(directory))


def _with_anyio(directory: Path) -> TrainingResult:
    return anyio.run(_run_inside, directory)


@pytest.mark.parametrize("run", [_with_asyncio, _with_anyio])
def test_run_beside_a_loop_that_is_already_running_is_the_same_run(
    run: Callable[[Path], TrainingResult], plain: Path, tmp_path: Path
) -> None:
    result = run(tmp_path)

    assert lines_of(result.run_dir) == lines_of(plain)


def test_run_beside_a_loop_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    asyncio.run(_run_inside(tmp_path))

    # anyio asks its idle worker threads to end when the loop ends, and does not wait for them.
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_run_on_a_thread_is_the_same_run(plain: Path, tmp_path: Path) -> None:
    results: list[TrainingResult] = []
    thread = threading.Thread(
        target=lambda: results.append(tiny_run(tmp_path, n_episodes=1)), name="caller"
    )
    thread.start()
    thread.join(60)

    assert lines_of(results[0].run_dir) == lines_of(plain)


def test_ready_event_is_set_and_shutdown_event_stops_the_run(tmp_path: Path) -> None:
    ready, stop = threading.Event(), threading.Event()
    outcomes: list[BaseException] = []

    def run() -> None:
        try:
            job = tiny_job(tmp_path, n_episodes=10_000)
            run_job(job, shutdown_event=stop, ready_event=ready)
        except InterruptedRunError as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    stop.set()
    thread.join(60)

    assert not thread.is_alive()
    assert isinstance(outcomes[0], InterruptedRunError)
    (run_dir,) = tmp_path.iterdir()
    assert b'"status":"interrupted"' in lines_of(run_dir)[-1]


def test_run_that_is_asked_to_stop_before_it_begins_creates_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(InterruptedRunError):
        run_job(tiny_job(tmp_path / "runs"), shutdown_event=stop)

    assert not (tmp_path / "runs").exists()
