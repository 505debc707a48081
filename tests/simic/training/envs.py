"""Small envs on real bodies, and the steps of a lane on them without any thread."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.builders.tiny_tasks import tiny_task

from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, SeedState
from esper.kasmina.slot import SeedSlot
from esper.leyline.actions import ActionSpec, Blueprint, Op, Topology
from esper.leyline.config import TrainingConfig
from esper.leyline.legality import ActionRules
from esper.leyline.messages import EnvEvidence, EnvFailure, EnvOutcome, StepDecision
from esper.leyline.reports import GradientReading
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import (
    CnnHostSpec,
    TaskKind,
    TaskSpec,
    TransformerHostSpec,
)
from esper.runtime.batches import Batch, SharedBatchIterator
from esper.runtime.datasets import Part, Split, TensorDataset
from esper.simic.training.assembly.worker_assembly import held_out_pass
from esper.simic.training.batch_ops import TrainRules
from esper.simic.training.env_factory import EnvFactoryContext
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.fences import CpuFence, Fence

torch.set_num_threads(1)

EAGER = LifecycleRules(min_training_steps=0, min_prune_age_steps=0)
"""Rules under which a seed goes as far as it is asked to."""

HEALTHY = GradientReading(norm=1.0, ratio=0.5, health=1.0, has_vanishing=False, has_exploding=False)


def _task(name: str, kind: TaskKind, host: CnnHostSpec | TransformerHostSpec) -> TaskSpec:
    losses = {"baseline_loss": 1.6, "target_loss": 0.3, "loss_delta_std": 0.05}
    return tiny_task(name, kind, host, batch_size=8, defaults={}, **losses)


IMAGES = _task(
    "tiny_images",
    TaskKind.CLASSIFICATION,
    CnnHostSpec(
        in_channels=1, image_size=4, num_classes=5, base_channels=2, num_blocks=3, num_pools=1
    ),
)
TEXT = _task(
    "tiny_text",
    TaskKind.LANGUAGE_MODEL,
    TransformerHostSpec(
        block_size=6, num_layers=3, num_heads=2, embed_dim=8, vocab_size=11, dropout=0.2
    ),
)
TASKS = {task.name: task for task in (IMAGES, TEXT)}
SLOTS = ("r0c0", "r0c1", "r0c2")
BLUEPRINTS = {IMAGES.name: Blueprint.CONV_LIGHT, TEXT.name: Blueprint.MLP_SMALL}
NUM_TRAIN, NUM_VAL = 24, 21


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _split(task: TaskSpec, num_rows: int, seed: int) -> Split:
    source, host = seeded(seed), task.host
    if isinstance(host, TransformerHostSpec):
        shape = (num_rows, host.block_size + 1)
        tokens = torch.randint(0, host.vocab_size, shape, generator=source)
        return Split(inputs=tokens[:, :-1], targets=tokens[:, 1:])
    targets = torch.randint(0, host.num_classes, (num_rows,), generator=source)
    shape = (num_rows, host.in_channels, host.image_size, host.image_size)
    shade = targets[:, None, None, None] / host.num_classes
    return Split(inputs=shade + 0.3 * torch.randn(shape, generator=source), targets=targets)


def dataset_of(task: TaskSpec) -> TensorDataset:
    """Return data that can be learnt a little."""
    parts = {"train": NUM_TRAIN, "val": NUM_VAL, "test": 5}
    return TensorDataset(
        **{name: _split(task, num, seed) for seed, (name, num) in enumerate(parts.items())}
    )


@dataclass(eq=False)
class World:
    """Envs that live through the same steps, one after another on this thread."""

    work: TrainingWork
    train_batches: SharedBatchIterator
    envs: list[ParallelEnvState]
    step: int = 0
    round_index: int = 0

    @property
    def env(self) -> ParallelEnvState:
        return self.envs[0]

    def train(self) -> None:
        """Train every env, batch first."""
        for env in self.envs:
            self.work.begin_train(env, self.step)
        shared = self.train_batches.batches(round=self.round_index, step=self.step)
        for batch_index, shares in enumerate(shared):
            for env in self.envs:
                self.work.train_batch(env, batch_index, shares[env.env_idx])
        for env in self.envs:
            self.work.finish_train(env)

    def validate(self) -> list[EnvEvidence]:
        return [self.work.validate(env, self.step, lambda: None) for env in self.envs]

    def look(self) -> list[EnvEvidence]:
        """Train and validate."""
        self.train()
        return self.validate()

    def act(
        self, *actions: ActionSpec | None, previous_rewards: Sequence[float | None] | None = None
    ) -> list[EnvOutcome]:
        """Carry out one action per env and let the step pass."""
        decision = StepDecision(
            round=self.round_index,
            step=self.step,
            is_last_step=self.step == self.work.context.config.max_epochs - 1,
            actions=actions,
            details=(None,) * len(actions),
            previous_rewards=(
                (None,) * len(actions) if previous_rewards is None else tuple(previous_rewards)
            ),
        )
        failures: list[EnvFailure] = []
        result = self.work.apply(self.envs, decision, failures, lambda: None)
        assert not failures, failures
        self.step += 1
        return result.outcomes

    def wait(self) -> list[EnvOutcome]:
        """Look, and let a step pass in every env without doing anything."""
        self.look()
        return self.act(*[ActionSpec(slot_id=SLOTS[0])] * len(self.envs))


def context_for(
    task: TaskSpec = IMAGES,
    *,
    fences: Sequence[Fence] = (),
    uses_scaler: bool = False,
    build_host: Any = None,
    run_seed: int = 7,
    **config: Any,
) -> EnvFactoryContext:
    settings = {"n_envs": 1, "max_epochs": 50, "slots": SLOTS, "lifecycle": EAGER, **config}
    training = TrainingConfig(task=task.name, **settings)
    return EnvFactoryContext(
        config=training,
        task=task,
        build_host=build_host,
        fences=dict(enumerate(fences or [CpuFence() for _ in range(training.n_envs)])),
        uses_scaler=uses_scaler,
        run_seed=run_seed,
    )


def world_of(
    task: TaskSpec = IMAGES,
    *,
    dataset: TensorDataset | None = None,
    gradient_stride: int = 1,
    val_batch_size: int = 8,
    **settings: Any,
) -> World:
    """Return envs of the first round that nothing has happened to."""
    context = context_for(task, **settings)
    config = context.config
    rules = ActionRules(
        slot_ids=config.slots,
        topology=task.host.topology,
        lifecycle=config.lifecycle,
        max_seeds=config.max_seeds,
    )
    stream = partial(
        SharedBatchIterator, dataset or dataset_of(task), n_envs=config.n_envs, seed=config.seed
    )
    work = TrainingWork(
        context=context,
        rules=TrainRules(
            max_grad_norm=config.max_grad_norm,
            gradient_stride=gradient_stride,
            autocast=nullcontext,
        ),
        action_rules=rules,
        masker=ActionMasker(rules),
        validation=partial(held_out_pass, stream(batch_size_per_env=val_batch_size, part=Part.VAL)),
    )
    return World(
        work=work,
        train_batches=stream(batch_size_per_env=task.batch_size),
        envs=[work.build(0, env_id) for env_id in range(config.n_envs)],
    )


def batch_of(task: TaskSpec = IMAGES, num_rows: int = 8, seed: int = 5) -> Batch:
    split = _split(task, num_rows, seed)
    return Batch(split.inputs, split.targets)


def germination(slot_id: str = SLOTS[0], task: TaskSpec = IMAGES, **heads: Any) -> ActionSpec:
    heads = {"blueprint": BLUEPRINTS[task.name], **heads}
    return ActionSpec(op=Op.GERMINATE, slot_id=slot_id, **heads)


def grow(env: ParallelEnvState, slot_id: str, stage: Stage) -> None:
    """Lead a seed by legal operations to a stage, its parameters away from the identity."""
    model, slot = env.model, env.model.slot(slot_id)
    blueprint = BLUEPRINTS[IMAGES.name if slot.topology is Topology.CNN else TEXT.name]
    request = GerminationRequest(seed_id=f"seed {slot_id}", blueprint=blueprint, tempo_steps=3)
    _granted(model.germinate(slot_id, request, env.seed_generator))
    with torch.no_grad():
        for parameter in slot.seed_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=seeded(3)))
    slot.record_gradient(HEALTHY)
    slot.record_contribution(2.0)
    while _state(slot).stage is not stage:
        if _state(slot).stage is Stage.HOLDING:
            _granted(slot.fossilize())
            continue
        _granted(slot.advance())
        if _state(slot).stage is Stage.BLENDING:
            # Two of three ticks for a seed that is to be seen blending, all for one that goes on.
            for _ in range(2 if stage is Stage.BLENDING else 3):
                slot.tick()
    env.seed_optimizers.sync_with(model)
    env.take_outbox()


def _state(slot: SeedSlot) -> SeedState:
    assert slot.state is not None
    return slot.state


def _granted(outcome: Transition) -> None:
    assert outcome.succeeded, outcome.refusal


def poison(env: ParallelEnvState) -> None:
    """Drive a host off, as a diverged optimizer would."""
    with torch.no_grad():
        for parameter in env.model.host_parameters():
            parameter.fill_(float("nan"))
