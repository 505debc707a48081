"""A run in a process of its own that can be killed: `python -m tests.reliability.killed_run`."""

import sys
from pathlib import Path

from tests.simic.training.runs import register_tiny_tasks, tiny_job

from esper.leyline.errors import UsageError
from esper.simic.training.resuming import find_latest, load_run
from esper.simic.training.vectorized import run_job

ROUNDS = 4


def main(telemetry_dir: Path) -> None:
    """Go on with the run in this directory, or start one."""
    register_tiny_tasks()
    try:
        loaded = load_run(find_latest(telemetry_dir, None))
    except UsageError:
        run_job(tiny_job(telemetry_dir, n_episodes=ROUNDS))
    else:
        run_job(loaded.job, resumed=loaded)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
