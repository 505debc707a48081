"""The limit: the same networks on the same batches in a plain PyTorch loop, on one thread.

No orchestration, policy, telemetry or attribution: what a run of Esper grew, and when, is read from
a replay of it. Each configuration that the run's validation looked at is one plain forward pass.

`python -m tools.bench.bare_loop` runs the requests on its stdin, a line of JSON each; see `Order`.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers
from esper.kasmina.seed import GerminationRequest, SeedState
from esper.kasmina.slot import NO_MODULES, SeedSlot
from esper.kasmina.trial import TRIAL_BATCHES
from esper.leyline.attribution import Ablation
from esper.leyline.stages import COOLDOWN_STAGES
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.runtime.batches import Batch, SharedBatchIterator, batch_size_for, is_augmented
from esper.runtime.datasets import Part
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from esper.simic.training.assembly.worker_setup import VALIDATION_BATCH
from esper.simic.training.batch_ops import backpropagate, try_seeds
from tools.bench.replay import NOTHING_GROWS, EnvStep, Replay
from tools.bench.workloads import WORKLOADS, Workload, job_of

__all__ = ["BareLoop", "Order", "main"]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process of the bare loop is to prepare; a line without anything runs it."""

    workload: str
    num_steps: int
    env_ids: tuple[int, ...]
    replay_path: str | None = None


@dataclass(eq=False, slots=True)
class _Env:
    """A network with its optimizers."""

    env_id: int
    model: MorphogeneticModel
    host_optimizer: torch.optim.Optimizer
    seed_optimizers: SeedOptimizers
    seed_generator: torch.Generator

    def become(self, now: EnvStep) -> None:
        """Add the seeds of a step."""
        for slot_id, state in now.seeds.items():
            _grow(self.model.slot(slot_id), state, self.seed_generator)
        self.seed_optimizers.sync_with(self.model)
        self.model.train()

    def train(self, batch: Batch) -> None:
        """Take one optimizer step on host and seeds."""
        optimizers = (self.host_optimizer, *self.seed_optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad()
        backpropagate(self.model, batch)
        for optimizer in optimizers:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0, foreach=True)
            optimizer.step()

    @torch.inference_mode()
    def validate(self, batches: Sequence[Batch], ablations: Sequence[Ablation]) -> float:
        """Evaluate all configurations and return the mean loss over all samples, unablated."""
        self.model.eval()
        losses = [self._loss(batches, ablation) for ablation in ablations]
        return losses[0]

    def _loss(self, batches: Sequence[Batch], ablation: Ablation) -> float:
        loss, correct = torch.zeros(()), torch.zeros(())
        for inputs, targets in batches:
            logits: Tensor = self.model(inputs, ablation)
            loss += nn.functional.cross_entropy(logits, targets, reduction="sum")
            correct += (logits.argmax(-1) == targets).sum()
        return loss.item() / sum(batch.targets.numel() for batch in batches)


def _grow(slot: SeedSlot, state: SeedState | None, generator: torch.Generator) -> None:
    known = None if slot.state is None else slot.state.seed_id
    if state is not None and state.seed_id != known and state.stage not in COOLDOWN_STAGES:
        slot.restore(None, NO_MODULES)
        request = GerminationRequest(
            seed_id=state.seed_id, blueprint=state.blueprint, style=state.style
        )
        slot.germinate(request, generator)
    slot.restore(state, slot.modules_for(state))


class BareLoop:
    """Trains some of a workload's envs, one batch after another."""

    def __init__(
        self,
        workload: Workload,
        env_ids: Sequence[int] | None = None,
        replay: Replay = NOTHING_GROWS,
    ) -> None:
        """Load the data; `env_ids` None takes all envs."""
        self._workload = workload
        self._config = job_of(workload, Path()).training
        self._task = registered_task(workload.task).spec
        self._env_ids = tuple(range(workload.num_envs) if env_ids is None else env_ids)
        self._steps = replay.by_place()
        dataset = load_dataset(workload.task, DataRequest())
        config = self._config
        common = {"n_envs": config.n_envs, "seed": config.seed}
        self._train = SharedBatchIterator(
            dataset,
            batch_size_per_env=batch_size_for(self._task, config, len(dataset.train)),
            mode=config.batch_mode or self._task.batch_mode,
            max_batches=self._task.max_train_batches,
            augment=is_augmented(dataset, config),
            **common,
        )
        validation = SharedBatchIterator(
            dataset, batch_size_per_env=VALIDATION_BATCH, part=Part.VAL, **common
        )
        self._validation = [shares[0] for shares in validation.batches(round=0, step=0)]

    def run(self) -> float:
        """Train and validate for all rounds and steps; return the last mean validation loss."""
        loss = 0.0
        for round_index in range(self._workload.num_rounds):
            envs = [self._env(round_index, env_id) for env_id in self._env_ids]
            for step in range(self._workload.num_steps):
                now = [self._step(round_index, env_id, step) for env_id in self._env_ids]
                for env, made_of in zip(envs, now, strict=True):
                    env.become(made_of)
                last = deque[Sequence[Batch]](maxlen=TRIAL_BATCHES)
                for shares in self._train.batches(round=round_index, step=step):
                    last.append(shares)
                    for env in envs:
                        env.train(shares[env.env_id])
                for env in envs:
                    try_seeds(env.model, [shares[env.env_id] for shares in last])
                losses = [
                    env.validate(self._validation, made_of.ablations)
                    for env, made_of in zip(envs, now, strict=True)
                ]
                loss = sum(losses) / len(losses)
        return loss

    def _step(self, round_index: int, env_id: int, step: int) -> EnvStep:
        bare = EnvStep(round=round_index, env_id=env_id, step=step)
        return self._steps.get((round_index, env_id, step), bare)

    def _env(self, round_index: int, env_id: int) -> _Env:
        task, config = self._task, self._config
        host = build_host(task.host, self._generator(StreamPurpose.INIT, round_index, env_id))
        return _Env(
            env_id=env_id,
            model=MorphogeneticModel(host, config.slots, config.lifecycle),
            host_optimizer=torch.optim.SGD(
                host.parameters(),
                lr=task.host_lr,
                momentum=task.momentum,
                weight_decay=task.host_weight_decay,
                foreach=True,
            ),
            seed_optimizers=SeedOptimizers(lr=task.seed_lr, momentum=task.momentum),
            seed_generator=self._generator(StreamPurpose.SEED_INIT, round_index, env_id),
        )

    def _generator(self, purpose: StreamPurpose, round_index: int, env_id: int) -> torch.Generator:
        source = stream_seed(self._config.seed, purpose=purpose, round=round_index, env=env_id)
        return torch.Generator().manual_seed(source)


def main() -> int:
    """Execute the requests on stdin: reply "ready" to a request, and seconds to an empty line."""
    torch.set_num_threads(1)
    loop: BareLoop | None = None
    for line in sys.stdin:
        if line.strip():
            loop = _prepared(msgspec.json.decode(line, type=Order))
            print("ready", flush=True)
            continue
        assert loop is not None, "asked to run before it was set up"
        started_s = time.perf_counter()
        loop.run()
        print(time.perf_counter() - started_s, flush=True)
    return 0


def _prepared(order: Order) -> BareLoop:
    workload = replace(WORKLOADS[order.workload], num_steps=order.num_steps)
    path = order.replay_path
    replay = NOTHING_GROWS if path is None else Replay.read(Path(path))
    return BareLoop(workload, order.env_ids, replay)


if __name__ == "__main__":
    sys.exit(main())
