"""The Ray cluster of this process: what connecting to it does to signals."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

WAIT_S = 120.0
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""As in our commands: a signal for the process is then one for its main thread."""

PRELUDE = """
import os, signal
import ray
from esper.tolaria.ray_cluster import RayCluster

received = []
signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
ray.is_initialized = lambda: False
real_init = ray.init
"""

AS_RAYS_PYTHON_CODE = """
def init(**options):
    # The real one first registers a handler of its own, which exits with the signal's number.
    try:
        real_init(no_such_option=True, **options)
    except RuntimeError as error:
        assert "no_such_option" in str(error)
    os.kill(os.getpid(), signal.SIGTERM)

ray.init = init
RayCluster(object).connect()
assert received == [signal.SIGTERM], received
os.kill(os.getpid(), signal.SIGTERM)
assert received == [signal.SIGTERM] * 2, received
"""

AS_RAYS_CORE = """
def connect(*arguments, **options):
    # As Ray's C++ code does: from here on, SIGTERM would abort the process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not received

ray._private.worker.connect = connect
ray.init = lambda **options: ray._private.worker.connect("worker")
RayCluster(object).connect()
assert received == [signal.SIGTERM], received
assert ray._private.worker.connect is connect
"""


@pytest.mark.parametrize("what_ray_does", [AS_RAYS_PYTHON_CODE, AS_RAYS_CORE])
def test_signal_while_ray_connects_reaches_our_handler(what_ray_does: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + what_ray_does],
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
