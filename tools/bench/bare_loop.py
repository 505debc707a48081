"""The limit: the same hosts on the same batches in a plain PyTorch loop, on one thread.

No orchestration, policy, telemetry or attribution. `python -m tools.bench.bare_loop WORKLOAD
--envs 0,1 --steps 10` runs once for each line it reads and answers with the seconds that took.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.kasmina.hosts import build_host
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.runtime.batches import Batch, SharedBatchIterator, batch_size_for
from esper.runtime.datasets import Part
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from esper.simic.training.vectorized import VALIDATION_BATCH
from tools.bench.workloads import WORKLOADS, Workload, job_of

__all__ = ["BareLoop", "main"]


class BareLoop:
    """Trains some of a workload's hosts, one batch after another."""

    def __init__(self, workload: Workload, env_ids: Sequence[int] | None = None) -> None:
        """Load the data; `env_ids` None takes all hosts."""
        self._workload = workload
        self._config = job_of(workload, Path()).training
        self._task = registered_task(workload.task).spec
        self._env_ids = tuple(range(workload.num_envs) if env_ids is None else env_ids)
        dataset = load_dataset(workload.task, DataRequest())
        config = self._config
        common = {"n_envs": config.n_envs, "seed": config.seed}
        self._train = SharedBatchIterator(
            dataset,
            batch_size_per_env=batch_size_for(self._task, config, len(dataset.train)),
            mode=config.batch_mode or self._task.batch_mode,
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
            hosts = [self._host(round_index, env_id) for env_id in self._env_ids]
            optimizers = [self._optimizer(host) for host in hosts]
            for step in range(self._workload.num_steps):
                for shares in self._train.batches(round=round_index, step=step):
                    for env_id, host, optimizer in zip(
                        self._env_ids, hosts, optimizers, strict=True
                    ):
                        self._train_batch(host, optimizer, shares[env_id])
                loss = sum(self._validate(host) for host in hosts) / len(hosts)
        return loss

    def _host(self, round_index: int, env_id: int) -> nn.Module:
        source = stream_seed(
            self._config.seed, purpose=StreamPurpose.INIT, round=round_index, env=env_id
        )
        return build_host(self._task.host, torch.Generator().manual_seed(source))

    def _optimizer(self, host: nn.Module) -> torch.optim.Optimizer:
        task = self._task
        return torch.optim.SGD(
            host.parameters(),
            lr=task.host_lr,
            momentum=task.momentum,
            weight_decay=task.host_weight_decay,
            foreach=True,
        )

    def _train_batch(self, host: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        host.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(host(batch.inputs), batch.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(host.parameters(), 1.0, foreach=True)
        optimizer.step()

    @torch.inference_mode()
    def _validate(self, host: nn.Module) -> float:
        host.eval()
        loss, correct = torch.zeros(()), torch.zeros(())
        for inputs, targets in self._validation:
            logits: Tensor = host(inputs)
            loss += nn.functional.cross_entropy(logits, targets)
            correct += (logits.argmax(-1) == targets).sum()
        return loss.item() / len(self._validation)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the loop once per line of input."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.bare_loop", description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--envs", required=True, help="env ids, parted by commas")
    parser.add_argument("--steps", type=int, required=True, help="of a round")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    env_ids = [int(word) for word in arguments.envs.split(",")]
    workload = replace(WORKLOADS[arguments.workload], num_steps=arguments.steps)
    loop = BareLoop(workload, env_ids)
    print("ready", flush=True)
    for _ in sys.stdin:
        started_s = time.perf_counter()
        loop.run()
        print(time.perf_counter() - started_s, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
