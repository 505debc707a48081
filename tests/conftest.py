"""What every test shares."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.builders.inherited_signals import heed_signals

# Deadlines and slow generation measure the machine, not Esper. Derandomized, so that a red run
# can be run again; the soaks look for new examples.
settings.register_profile(
    "esper",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("esper")

ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
HALF_PRECISION = "import torch; ones = torch.ones(64, 64, dtype=torch.bfloat16); ones @ ones"


def keep_from_broken_tiles() -> None:
    """Keep torch from matrix tiles where a virtual machine announces them and cannot run them.

    There any product in half precision ends the process with an illegal instruction.
    """
    processor = Path("/proc/cpuinfo")
    is_announced = processor.exists() and "amx_tile" in processor.read_text()
    # The workers of pytest-xdist inherit the limit from the process that started them.
    is_decided = ISA_LIMIT in os.environ or "PYTEST_XDIST_WORKER" in os.environ
    if is_announced and not is_decided:
        child = subprocess.run([sys.executable, "-c", HALF_PRECISION], stderr=subprocess.DEVNULL)
        if child.returncode != 0:
            os.environ[ISA_LIMIT] = "AVX512_CORE_FP16"


# Before anything imports torch, which reads it once.
keep_from_broken_tiles()

# Otherwise each of the many processes that tests start would compile all of Esper again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Otherwise the processes that tests interrupt might ignore it.
heed_signals()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than processors: some tests wait, for deadlines, Ray or a browser."""
    return (os.cpu_count() or 1) + 1


LONGEST = (
    "tools/test_evidence.py",
    "reliability/test_visitors.py",
    "integration/test_tutorials.py",
    "reliability/test_lost_links.py",
    "simic/training/test_ray_worker.py",
    "reliability/test_worker_processes.py",
    "integration/test_shipped_networks.py",
    "karn/web/test_dashboard_browser.py",
    "integration/test_learner_on_probes.py",
    "integration/test_end_of_a_served_run.py",
    "tools/test_bench.py",
    "simic/training/test_worker_process.py",
    "integration/test_own_network.py",
    "simic/exporting/test_export.py",
    "test_docs.py",
    "test_baselines.py",
    "simic/training/checkpoints/test_resuming.py",
    "scripts/test_train_compare.py",
    "simic/evaluation/test_compare.py",
    "karn/web/test_list_browser.py",
    "simic/test_own_blueprint.py",
)
"""Files of 10 seconds and more, the longest first."""
WHOLE_RUNS = ("integration", "reliability", "tools", "test_wheel.py", "karn", "scripts", "simic")
"""Parts of `tests` that take longest: their tests train, or execute commands."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no worker is left alone with one at the end."""
    root = Path(__file__).parent
    places = {root / name: place for place, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in places), "LONGEST names a file that is gone"

    def place_of(item: pytest.Item) -> int:
        is_short = item.path.relative_to(root).parts[0] not in WHOLE_RUNS
        return places.get(item.path, len(LONGEST) + is_short)

    items.sort(key=place_of)


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which Esper runs on, and on nothing else."""
    return "asyncio"
