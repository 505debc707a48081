"""Measures how fast the probe engine is, alone and beside the control thread."""

import time
from dataclasses import dataclass
from typing import Final

import anyio
from tests.builders.steps import all_evidence, applied

from esper.leyline.actions import ActionSpec, Blueprint, Op
from esper.leyline.episodes import is_last_step
from esper.leyline.messages import StepDecision
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.assembly.control_assembly import start_control
from esper.simic.training.assembly.engines import build_engine
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.step import ControlThread, run_step
from esper.tolaria.engine import WorkerEngine
from tools.markdown import table
from tools.probes.learning import job_of, setup_of

__all__ = ["control_rate", "speed_table"]

NUM_ROUNDS: Final = 8
PROBE: Final = "context"


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTime:
    """Seconds that some rounds took, the first one excepted, which warms up."""

    engine_s: float
    """Of the lanes and of the event loop that drives them."""
    control_s: float = 0.0


def speed_table() -> str:
    """Return the env-steps per second of CPU time: of the engine, of control, and of both."""
    setup = setup_of(job_of(PROBE), command="ppo")
    training = setup.job.training
    num_steps = NUM_ROUNDS * training.n_envs * training.max_epochs
    with one_thread_per_worker():
        alone, beside = anyio.run(_engine_alone, setup), anyio.run(_beside_control, setup)
    rows = [
        ("engine alone", alone.engine_s),
        ("engine beside control", beside.engine_s),
        ("control: observation, policy, rewards", beside.control_s),
        ("engine and control", beside.engine_s + beside.control_s),
    ]
    cells = [(name, f"{num_steps / cpu_s:,.0f}") for name, cpu_s in rows]
    return table(("", "env-steps per CPU second"), cells)


def control_rate(num_envs: int, min_steps: int) -> float:
    """Return the env-steps per CPU second of control, of a round or more."""
    setup = setup_of(job_of(PROBE, n_envs=num_envs), command="ppo")
    num_steps = num_envs * setup.job.training.max_epochs
    num_rounds = -(-min_steps // num_steps)
    with one_thread_per_worker():
        spent = anyio.run(_beside_control, setup, num_rounds)
    return num_rounds * num_steps / spent.control_s


async def _beside_control(setup: RunSetup, num_rounds: int = NUM_ROUNDS) -> CpuTime:
    """Take the envs through some rounds with the decisions of a policy; updates do not count."""
    control, engine = await start_control(setup), build_engine(setup.worker)
    all_s = control_s = 0.0
    for round_index in range(num_rounds + 1):
        all_before_s, control_before_s = time.process_time(), await control.run(time.thread_time)
        await _play(setup, engine, control, round_index)
        if round_index > 0:
            control_s += await control.run(time.thread_time) - control_before_s
            all_s += time.process_time() - all_before_s
        await control.learn()
    engine.close()
    control.close()
    return CpuTime(engine_s=all_s - control_s, control_s=control_s)


async def _play(
    setup: RunSetup, engine: WorkerEngine, control: ControlThread, round_index: int
) -> None:
    await control.begin_round(round_index)
    await engine.build_round(round_index)
    for step in range(setup.job.training.max_epochs):
        await run_step(
            engine,
            control,
            step,
            profiler=PhaseProfiler(is_on=False),
        )


async def _engine_alone(setup: RunSetup) -> CpuTime:
    """Take the envs through some rounds in which each plants a seed."""
    engine, training = build_engine(setup.worker), setup.job.training
    plant = ActionSpec(op=Op.GERMINATE, slot_id=training.slots[0], blueprint=Blueprint.CONV_LIGHT)
    wait = ActionSpec(slot_id=training.slots[0])
    blank = (None,) * training.n_envs
    began_s = 0.0
    for round_index in range(NUM_ROUNDS + 1):
        if round_index == 1:
            began_s = time.process_time()
        await engine.build_round(round_index)
        for step in range(training.max_epochs):
            await all_evidence(engine, step)
            await applied(
                engine,
                StepDecision(
                    round=round_index,
                    step=step,
                    is_last_step=is_last_step(step, training.max_epochs),
                    actions=(plant if step == 3 else wait,) * training.n_envs,
                    details=blank,
                    previous_rewards=blank,
                ),
            )
    spent_s = time.process_time() - began_s
    engine.close()
    return CpuTime(engine_s=spent_s)
