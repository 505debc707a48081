"""Measures how fast the probe engine is, alone and beside the control thread."""

import time
from functools import partial
from typing import Final

import anyio

from esper.leyline.actions import ActionSpec, Blueprint, Op
from esper.leyline.episodes import is_last_step
from esper.leyline.messages import StepDecision
from esper.simic.training.assembly.engines import build_engine
from esper.simic.training.assembly.run_setup import RunSetup
from tools.markdown import table
from tools.probes.learning import job_of, play_round, setup_of

__all__ = ["speed_table"]

NUM_ROUNDS: Final = 8
PROBE: Final = "context"


def speed_table() -> str:
    """Return the env-steps per second of CPU time and of wall time."""
    setup = setup_of(job_of(PROBE), command="ppo")
    training = setup.job.training
    num_steps = training.n_envs * training.max_epochs
    rows = [
        ("engine alone", *_measured(partial(_engine_alone, setup), NUM_ROUNDS * num_steps)),
        ("engine and control, no update", *_measured(partial(_beside, setup), num_steps)),
    ]
    return table(("", "env-steps per CPU second", "env-steps per second"), rows)


def _measured(run: partial[object], num_steps: int) -> tuple[str, str]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    run()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return f"{num_steps / cpu_s:,.0f}", f"{num_steps / wall_s:,.0f}"


def _beside(setup: RunSetup) -> None:
    anyio.run(play_round, setup)


def _engine_alone(setup: RunSetup) -> None:
    anyio.run(_drive, setup)


async def _drive(setup: RunSetup) -> None:
    """Take the envs through some rounds in which each plants a seed."""
    engine, training = build_engine(setup.worker), setup.job.training
    plant = ActionSpec(op=Op.GERMINATE, slot_id=training.slots[0], blueprint=Blueprint.CONV_LIGHT)
    wait = ActionSpec(slot_id=training.slots[0])
    blank = (None,) * training.n_envs
    for round_index in range(NUM_ROUNDS):
        await engine.build_round(round_index)
        for step in range(training.max_epochs):
            await engine.train_pass(step)
            await engine.validate_pass(step)
            await engine.apply(
                StepDecision(
                    round=round_index,
                    step=step,
                    is_last_step=is_last_step(step, training.max_epochs),
                    actions=(plant if step == 3 else wait,) * training.n_envs,
                    details=blank,
                    previous_rewards=blank,
                )
            )
    engine.close()
