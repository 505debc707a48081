"""Tasks and presets as tables: which host learns which data, and settings that suit it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias, TypedDict

import msgspec

from esper.leyline.actions import Topology
from esper.leyline.contexts import ContextSpec
from esper.leyline.errors import UnknownNameError
from esper.leyline.probes import (
    LOTTERY_LIFECYCLE,
    PROBE_PREFIX,
    PROBES,
    RENTED,
    Probe,
    ProbeHostSpec,
)
from esper.leyline.slots import DEFAULT_SLOT_IDS, format_slot_id

__all__ = [
    "BYTE_VOCABULARY",
    "PRESETS",
    "TASKS",
    "BatchMode",
    "CnnHostSpec",
    "HostSpec",
    "ModuleHostSpec",
    "Preset",
    "Settings",
    "TaskKind",
    "TaskSpec",
    "TransformerHostSpec",
    "is_task_reference",
    "preset_named",
    "task_named",
]

BYTE_VOCABULARY: Final = 256

Settings: TypeAlias = Mapping[str, object]
"""Some fields of a TrainingConfig, checked when they are merged into one."""


class TaskKind(StrEnum):
    """The kind of learning problem."""

    CLASSIFICATION = "classification"
    LANGUAGE_MODEL = "language_model"


class BatchMode(StrEnum):
    """How the training stream reaches the envs; validation always reaches them whole."""

    BROADCAST = "broadcast"
    """Every env sees every batch."""
    SPLIT = "split"
    """A combined batch is divided over the envs."""


class CnnHostSpec(msgspec.Struct, frozen=True, kw_only=True, tag="cnn"):
    """A stack of convolution blocks whose channels double from block to block."""

    in_channels: int
    image_size: int
    num_classes: int
    base_channels: int
    num_blocks: int = 3
    kernel_size: int = 3
    num_pools: int | None = None
    """How many blocks, from the first on, are followed by a 2x2 pool; None means all."""

    @property
    def topology(self) -> Topology:
        """Return the family of this host."""
        return Topology.CNN

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """Return the shape of one image."""
        return (self.in_channels, self.image_size, self.image_size)

    @property
    def pools(self) -> int:
        """Count the pools."""
        return self.num_blocks if self.num_pools is None else self.num_pools

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Return the slots it offers in action order: row 0 before, row 1 after the pools."""
        before = (format_slot_id(0, index) for index in range(self.num_blocks))
        after = (format_slot_id(1, index) for index in range(self.pools))
        return (*before, *after)


class TransformerHostSpec(msgspec.Struct, frozen=True, kw_only=True, tag="transformer"):
    """A GPT-style decoder over bytes."""

    block_size: int
    num_layers: int
    num_heads: int
    embed_dim: int
    num_segments: int = 3
    dropout: float = 0.1
    vocab_size: int = BYTE_VOCABULARY

    @property
    def topology(self) -> Topology:
        """Return the family of this host."""
        return Topology.TRANSFORMER

    @property
    def num_classes(self) -> int:
        """Return the number of outcomes a random guess chooses from."""
        return self.vocab_size

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Return the slots it offers, one after each segment of layers."""
        return tuple(format_slot_id(0, index) for index in range(self.num_segments))


class ModuleHostSpec(msgspec.Struct, frozen=True, kw_only=True, tag="module"):
    """A network of the user's own, cut behind some of its submodules."""

    factory: str
    """Module and function, a colon between them; called without arguments, it returns a network."""
    after: tuple[str, ...]
    """The submodules with a slot behind them, in the order of the forward pass."""
    sample_shape: tuple[int, ...]
    """The shape of one input, without the batch."""
    num_classes: int
    topology: Topology = Topology.CNN
    """CNN if the features behind `after` are images, TRANSFORMER if they are sequences."""

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Return the slots it offers, one per entry of `after`."""
        return tuple(format_slot_id(0, index) for index in range(len(self.after)))


HostSpec: TypeAlias = CnnHostSpec | TransformerHostSpec | ModuleHostSpec | ProbeHostSpec


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A host, the data it learns, and the settings a run takes from the task by default."""

    name: str
    summary: str
    kind: TaskKind
    dataset: str
    host: HostSpec
    batch_size: int
    batch_mode: BatchMode
    max_train_batches: int | None = None
    """Batches of a train pass, a new choice in each; None goes through the whole split."""
    max_held_out: int | None = None
    """Images of the validation and of the test split, spread evenly over them; None takes all."""
    baseline_loss: float
    """Loss of a random guess."""
    target_loss: float
    loss_delta_std: float
    loss_rent_weight: float = 0.05
    host_lr: float = 0.01
    seed_lr: float = 0.01
    host_weight_decay: float = 5e-4
    momentum: float = 0.9
    success_accuracy_pct: float = 80.0
    defaults: Settings = {}
    contexts: tuple[ContextSpec, ...] = ()
    """Variants, one of which is drawn for each episode; none for most tasks."""

    def host_in(self, context: ContextSpec | None) -> HostSpec:
        """Return the host that a context describes."""
        changes = {} if context is None else context.host_changes
        return msgspec.structs.replace(self.host, **changes) if changes else self.host


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Named settings; a preset may choose the task as well."""

    name: str
    summary: str
    settings: Settings


_SMALL_POLICY: Final[Settings] = {"lstm_hidden_dim": 64, "feature_dim": 64}

_GROWTH_REWARD: Final[Settings] = {
    "simplified_accuracy_weight": 0.0,
    "simplified_fossil_bonus": 0.0,
    "simplified_committed_weight": 10.0,
}

_GROWTH: Final[Settings] = {
    "n_envs": 8,
    "max_epochs": 40,
    # A terminal reward for what the fossils achieve: the dense modes reward a seed at every step
    # until it is fossilized, so that a policy learns never to fossilize, and a reward for each
    # fossil makes many weak seeds worth as much as few strong ones.
    "reward_mode": "simplified",
    "reward": _GROWTH_REWARD,
    "lr": 2e-3,
    # With few episodes per round a shorter horizon of the advantages has less noise, and the
    # critic supplies the rest.
    "gae_lambda": 0.95,
    # Per decision. A course of few rounds needs large steps; stable ones need about a tenth.
    "target_kl": 0.2,
}
"""Settings with which a policy learns to grow."""


def _growth_lifecycle(min_training_steps: int) -> Settings:
    """Return rules under which a policy's decisions are what to plant, where, and what to keep.

    Seeds advance by themselves and are safe until they take part.
    """
    return {
        "auto_forward": (1, 2, 3),
        "min_training_steps": min_training_steps,
        "min_prune_age_steps": 10,
    }


class _Losses(TypedDict):
    baseline_loss: float
    target_loss: float
    loss_delta_std: float


_IMAGE_LOSSES: Final[_Losses] = {"baseline_loss": 2.3, "target_loss": 0.3, "loss_delta_std": 0.05}


def _cifar(
    name: str, summary: str, host: CnnHostSpec | ModuleHostSpec, slots: tuple[str, ...]
) -> TaskSpec:
    return TaskSpec(
        name=name,
        summary=summary,
        kind=TaskKind.CLASSIFICATION,
        dataset="cifar10",
        host=host,
        batch_size=128,
        batch_mode=BatchMode.SPLIT,
        defaults={"slots": slots},
        **_IMAGE_LOSSES,
    )


def _cifar_host(base_channels: int, num_blocks: int = 3, *, kernel_size: int = 3) -> CnnHostSpec:
    return CnnHostSpec(
        in_channels=3,
        image_size=32,
        num_classes=10,
        base_channels=base_channels,
        num_blocks=num_blocks,
        kernel_size=kernel_size,
    )


def _row(row: int, num_columns: int) -> tuple[str, ...]:
    return tuple(format_slot_id(row, column) for column in range(num_columns))


def _short_sighted_host(image_size: int) -> CnnHostSpec:
    return CnnHostSpec(
        in_channels=1,
        image_size=image_size,
        num_classes=10,
        base_channels=4,
        num_blocks=3,
        kernel_size=1,
        num_pools=2,
    )


_DIGITS: Final = TaskSpec(
    name="digits",
    summary="1,797 handwritten digits of 8x8 pixels, shipped with Esper; a host too small for them",
    kind=TaskKind.CLASSIFICATION,
    dataset="digits",
    # 1x1 convolutions: without seeds the host's receptive field grows by pooling only and its
    # accuracy stays near one third; with a 3x3 seed it reaches three quarters.
    host=_short_sighted_host(image_size=8),
    host_lr=0.01,
    seed_lr=0.02,
    batch_size=50,
    batch_mode=BatchMode.BROADCAST,
    defaults={
        "slots": DEFAULT_SLOT_IDS,
        **_GROWTH,
        # A seed that trains alone for more than a step learns what does not help the host.
        "lifecycle": _growth_lifecycle(min_training_steps=1),
        "reward": {
            **_GROWTH_REWARD,
            # Each step is paid the accuracy that it has gained, and the end takes back what was
            # paid: the return is the same, and an action is judged by what follows it soon.
            "pbrs_potential": "accuracy",
            "pbrs_weight": 10.0,
        },
        # About 90 s on two free cores. A seed has shown its worth after 30 steps, and many short
        # episodes say more about a decision than a few long ones.
        "max_epochs": 30,
        "n_episodes": 11,
        # Few episodes must teach much: more and larger steps on each round, by gradients of half
        # of its hosts, and smaller ones at the end, which keep what has been learned.
        "clip_ratio": 0.3,
        "num_minibatches": 2,
        "recurrent_n_epochs": 8,
        "lr_end": 2e-4,
        # Random actions cost hosts: the second half of the run is nearly free of them.
        "entropy_coef": 0.03,
        "entropy_coef_end": 0.01,
        "entropy_anneal_episodes": 48,
        "value_warmup_batches": 0,
        **_SMALL_POLICY,
    },
    **_IMAGE_LOSSES,
)

_FASHION: Final = TaskSpec(
    name="fashion_mnist",
    summary="Fashion-MNIST, 28x28 grayscale images in 10 classes",
    kind=TaskKind.CLASSIFICATION,
    dataset="fashion_mnist",
    host=_short_sighted_host(image_size=28),
    host_lr=0.01,
    seed_lr=0.005,
    batch_size=128,
    batch_mode=BatchMode.BROADCAST,
    defaults={"slots": DEFAULT_SLOT_IDS, "max_epochs": 40, **_SMALL_POLICY},
    **_IMAGE_LOSSES,
)

_FASHION_GROWTH: Final = msgspec.structs.replace(
    _FASHION,
    name="fashion_growth",
    summary="Fashion-MNIST at 14x14, 1,280 images a step, 1,000 to judge by: growth on a laptop",
    # At 14x14 a step takes a third of the time, and a seed's receptive field covers a larger part
    # of the image.
    host=_short_sighted_host(image_size=14),
    max_train_batches=10,
    max_held_out=1000,
)

_FAMILY: Final = (
    ContextSpec(
        name="pointwise",
        summary="the task's own host of 1x1 convolutions, which needs seeds with a wider view",
    ),
    ContextSpec(
        name="spatial",
        summary="a host of 3x3 convolutions, which learns the task alone",
        kernel_size=3,
    ),
    ContextSpec(
        name="permuted",
        summary="pixels in a random order, the same in all images: neighbours mean nothing",
        is_permuted=True,
    ),
    ContextSpec(
        name="noisy",
        summary="four of five labels are wrong: growth only costs",
        label_noise=0.8,
    ),
    ContextSpec(
        name="pointwise_wide",
        summary="1x1 convolutions with more channels; drawn only on request",
        weight=0.0,
        base_channels=6,
    ),
    ContextSpec(
        name="pointwise_dim",
        summary="the task's own host on inputs of half the scale; drawn only on request",
        weight=0.0,
        input_scale=0.5,
    ),
    ContextSpec(
        name="lottery",
        summary="the task's own host, and half of all seeds never learn; drawn only on request",
        weight=0.0,
        sterile_share=0.5,
    ),
)


def _with_contexts(
    task: TaskSpec, name: str, summary: str, contexts: tuple[ContextSpec, ...]
) -> TaskSpec:
    """Return a family of tasks that is learned with the settings of growth, and with rent."""
    return msgspec.structs.replace(
        task,
        name=name,
        summary=summary,
        contexts=contexts,
        defaults={
            "slots": DEFAULT_SLOT_IDS,
            **_GROWTH,
            **RENTED,
            "lifecycle": LOTTERY_LIFECYCLE,
            "n_episodes": 60,
            "entropy_coef": 0.03,
            "value_warmup_batches": 0,
            **_SMALL_POLICY,
        },
    )


_DIGITS_CONTEXTS: Final = _with_contexts(
    _DIGITS,
    "digits_contexts",
    "digits, where hosts and data differ from episode to episode, and seeds cost rent",
    _FAMILY,
)

_DIGITS_LOTTERY: Final = _with_contexts(
    _DIGITS,
    "digits_lottery",
    "digits, where half of all seeds never learn, and seeds cost rent",
    (ContextSpec(name="lottery", summary="half of all seeds are sterile", sterile_share=0.5),),
)

_FASHION_CONTEXTS: Final = _with_contexts(
    _FASHION_GROWTH,
    "fashion_contexts",
    "Fashion-MNIST at 14x14 in the contexts of digits_contexts",
    _FAMILY,
)

_DIGITS_VIT_HOST: Final = ModuleHostSpec(
    factory="esper.runtime.networks.vit:digits_vit",
    after=("blocks.0", "blocks.1", "blocks.2"),
    sample_shape=(1, 8, 8),
    num_classes=10,
    topology=Topology.TRANSFORMER,
)

_DIGITS_VIT: Final = msgspec.structs.replace(
    _DIGITS,
    name="digits_vit",
    summary="the same digits with a vision transformer of 26,000 parameters, a plain module",
    host=_DIGITS_VIT_HOST,
    host_lr=0.05,
    defaults={**_DIGITS.defaults, "slots": _DIGITS_VIT_HOST.slot_ids},
)

_RESNET20_HOST: Final = ModuleHostSpec(
    factory="esper.runtime.networks.resnet:resnet20",
    after=("layer1", "layer2", "layer3"),
    sample_shape=(3, 32, 32),
    num_classes=10,
)

_CIFAR: Final = (
    _cifar("cifar_baseline", "3 blocks, 8 to 32 channels", _cifar_host(8), _row(0, 3)),
    _cifar("cifar_scale", "5 blocks, 8 to 128 channels", _cifar_host(8, 5), _row(0, 5)),
    _cifar(
        "cifar_impaired", "77 parameters, 1x1 kernels", _cifar_host(1, kernel_size=1), _row(0, 3)
    ),
    _cifar(
        "cifar_minimal",
        "164 parameters, 1x1 kernels, no pool",
        msgspec.structs.replace(_cifar_host(2, kernel_size=1), num_pools=0),
        _row(0, 3),
    ),
    _cifar(
        "cifar_multichannel",
        "slots before and after each pool",
        _cifar_host(8),
        (*_row(0, 3), *_row(1, 3)),
    ),
    _cifar("cifar_postpool", "16 to 64 channels, slots after pools", _cifar_host(16), _row(1, 3)),
    _cifar("cifar_highres", "16 to 64 channels, slots before pools", _cifar_host(16), _row(0, 3)),
    _cifar(
        "cifar_deep_multichannel",
        "5 blocks, slots before and after each pool",
        _cifar_host(8, 5),
        (*_row(0, 5), *_row(1, 5)),
    ),
    _cifar(
        "cifar_deep_impaired",
        "1,140 parameters, 1x1 kernels, 10 slots",
        _cifar_host(2, 5, kernel_size=1),
        (*_row(0, 5), *_row(1, 5)),
    ),
    _cifar(
        "cifar_resnet20",
        "ResNet-20 as published, 269,722 parameters, a plain module",
        _RESNET20_HOST,
        _RESNET20_HOST.slot_ids,
    ),
)


def _language_model(
    name: str,
    summary: str,
    host: TransformerHostSpec,
    *,
    batch_size: int,
    max_train_batches: int,
    **defaults: object,
) -> TaskSpec:
    return TaskSpec(
        name=name,
        summary=summary,
        kind=TaskKind.LANGUAGE_MODEL,
        dataset=name,
        host=host,
        batch_size=batch_size,
        batch_mode=BatchMode.BROADCAST,
        max_train_batches=max_train_batches,
        baseline_loss=5.55,
        target_loss=1.5,
        loss_delta_std=0.15,
        loss_rent_weight=0.01,
        defaults={"slots": DEFAULT_SLOT_IDS, **defaults},
    )


_LANGUAGE_MODELS: Final = (
    _language_model(
        "bytes_lm",
        "byte-level language model on the interpreter's own help texts",
        TransformerHostSpec(block_size=64, num_layers=3, num_heads=4, embed_dim=32),
        batch_size=16,
        max_train_batches=32,
        max_epochs=30,
        **_SMALL_POLICY,
    ),
    _language_model(
        "tinystories",
        "byte-level language model on the text files of --data-dir, 10.8 million parameters",
        TransformerHostSpec(block_size=256, num_layers=6, num_heads=6, embed_dim=384),
        batch_size=32,
        max_train_batches=100,
        max_epochs=50,
    ),
)


def _probe_task(probe: Probe) -> TaskSpec:
    return TaskSpec(
        name=PROBE_PREFIX + probe.name,
        summary=probe.summary,
        kind=TaskKind.CLASSIFICATION,
        dataset="probe",
        host=probe.host,
        batch_size=1,
        batch_mode=BatchMode.BROADCAST,
        defaults={"slots": probe.host.slot_ids, **probe.settings},
        contexts=_kinds_of(probe),
        **_IMAGE_LOSSES,
    )


def _kinds_of(probe: Probe) -> tuple[ContextSpec, ...]:
    weights = probe.host.kind_weights
    if len(weights) == 1:
        return ()
    return tuple(ContextSpec(name=name, weight=weight) for name, weight in weights.items())


TASKS: Final[Mapping[str, TaskSpec]] = {
    task.name: task
    for task in (
        *(_DIGITS, _DIGITS_VIT, _FASHION, _FASHION_GROWTH, *_CIFAR, *_LANGUAGE_MODELS),
        *(_DIGITS_CONTEXTS, _DIGITS_LOTTERY, _FASHION_CONTEXTS),
        *map(_probe_task, PROBES.values()),
    )
}
"""The tasks that ship with Esper."""


def _preset(name: str, summary: str, /, **settings: object) -> Preset:
    return Preset(name=name, summary=summary, settings={"task": name, **settings})


_EXPLORING: Final[Settings] = {"entropy_coef": 0.1, "plateau_threshold": 0.4}

PRESETS: Final[Mapping[str, Preset]] = {
    preset.name: preset
    for preset in (
        _preset("digits", "the default job: digits_growth in 11 rounds"),
        _preset("fashion_mnist", "Fashion-MNIST with the plain defaults"),
        Preset(
            name="digits_growth",
            summary="digits, with settings that let a policy learn to grow; see docs/evidence.md",
            settings={"task": "digits", "n_episodes": 16},
        ),
        _preset(
            "fashion_growth",
            "growth on Fashion-MNIST at 14x14",
            **_GROWTH,
            lifecycle=_growth_lifecycle(min_training_steps=5),
            n_episodes=12,
            entropy_coef_start=0.05,
            entropy_coef_end=0.01,
            entropy_anneal_episodes=256,
        ),
        Preset(
            name="closed_loop",
            summary="the contexts of digits_contexts and digits_lottery; see docs/evidence.md",
            settings={
                "task": "digits_contexts",
                "contexts": {
                    **{context.name: context.weight for context in _FAMILY if context.weight},
                    "lottery": 3.0,
                },
                "n_episodes": 30,
            },
        ),
        Preset(
            name="closed_loop_probe",
            summary="closed_loop without networks: thousands of episodes in minutes",
            settings={"task": "probe:contexts"},
        ),
        _preset("cifar_baseline", "CIFAR-10 with broad exploration", **_EXPLORING),
        _preset("cifar_impaired", "a crippled host with broad exploration", **_EXPLORING),
        _preset("cifar_minimal", "the smallest host with broad exploration", **_EXPLORING),
        Preset(
            name="cifar_baseline_stable",
            summary="CIFAR-10, small policy steps, annealed exploration",
            settings={
                "task": "cifar_baseline",
                "n_episodes": 200,
                "clip_ratio": 0.1,
                "entropy_coef_start": 0.06,
                "entropy_coef_end": 0.03,
                "entropy_anneal_episodes": 200,
                "plateau_threshold": 0.4,
            },
        ),
        _preset("cifar_scale", "a deeper host", entropy_coef=0.08, plateau_threshold=0.35),
        _preset("bytes_lm", "a language model that trains on a laptop", reward_family="loss"),
        _preset(
            "tinystories",
            "a language model of 10 million parameters",
            reward_family="loss",
            entropy_anneal_episodes=10,
            plateau_threshold=0.3,
            improvement_threshold=1.5,
        ),
    )
}
"""The presets that ship with Esper."""


def is_task_reference(name: str) -> bool:
    """Return whether a task is named by where it is written.

    That is `package.module:NAME` or `path/to/file.py:NAME`, and not `probe:NAME`.
    """
    source, separator, attribute = name.rpartition(":")
    is_module = all(part.isidentifier() for part in source.split("."))
    is_place = source.endswith(".py") or (is_module and not name.startswith(PROBE_PREFIX))
    return bool(separator) and attribute.isidentifier() and is_place


def task_named(name: str, tasks: Mapping[str, TaskSpec] = TASKS) -> TaskSpec:
    """Return the task with this name."""
    try:
        return tasks[name]
    except KeyError:
        raise UnknownNameError("task", name, tasks) from None


def preset_named(name: str) -> Preset:
    """Return the preset with this name."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UnknownNameError("preset", name, PRESETS) from None
