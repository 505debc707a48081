"""What the engine brings out of envs beside evidence: test results and copies of networks."""

from collections.abc import AsyncIterator

import anyio
import pytest
from tests.builders.steps import all_evidence
from tests.tolaria.test_engine import NUM_ENVS, WAIT_S, NotedEnv, NotingWork, engine_for

from esper.leyline.messages import EnvTestResult
from esper.tolaria.engine import WorkerEngine

pytestmark = pytest.mark.anyio


class ReadableWork(NotingWork):
    """Also answers what is asked about an env."""

    def test(self, env: NotedEnv, beat: object) -> EnvTestResult:
        self._do(env, "test")
        return EnvTestResult(env_id=env.env_id, loss=0.5, accuracy_pct=50.0, num_samples=4)

    def snapshot(self, env: NotedEnv) -> dict[str, object]:
        self._do(env, "snapshot")
        return {"env_id": env.env_id}


@pytest.fixture
def work() -> ReadableWork:
    return ReadableWork()


@pytest.fixture
async def engine(work: ReadableWork) -> AsyncIterator[WorkerEngine]:
    engine = engine_for(work, 2, batches=lambda *_: ())
    with anyio.fail_after(WAIT_S):
        await engine.build_round(0)
        yield engine
        engine.close()


async def test_every_env_is_tested_by_its_own_lane_and_reported_in_order(
    engine: WorkerEngine, work: ReadableWork
) -> None:
    results = await engine.test_pass(3)

    assert [result.env_id for result in results if result is not None] == list(range(NUM_ENVS))
    assert all(len(env.threads) == 1 for env in work.envs.values())


async def test_env_that_breaks_in_its_test_is_quarantined_and_reported_with_the_next_message(
    engine: WorkerEngine, work: ReadableWork
) -> None:
    work.fault = _fail_env_1_in_test

    results = await engine.test_pass(3)

    assert results[1] is None
    assert await engine.snapshot(1) is None
    evidence = await all_evidence(engine, 3)
    assert [(failure.env_id, failure.step) for failure in evidence.failures] == [(1, 3)]


def _fail_env_1_in_test(what: str, env_id: int) -> None:
    if what == "test" and env_id == 1:
        raise ValueError("injected")


async def test_snapshot_is_taken_by_the_lane_that_owns_the_env(
    engine: WorkerEngine, work: ReadableWork
) -> None:
    for env_id in range(NUM_ENVS):
        assert await engine.snapshot(env_id) == {"env_id": env_id}

    assert all(env.log == ["build", "snapshot"] for env in work.envs.values())
    assert all(len(env.threads) == 1 for env in work.envs.values())
