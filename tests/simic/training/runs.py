"""Small real runs, and what may be compared of two of them."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import BatchMode, CnnHostSpec, TaskKind, TaskSpec, TransformerHostSpec
from esper.leyline.telemetry import EventType, volatile_paths
from esper.nissa.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.runtime.datasets import Split, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import all_tasks, register_task
from esper.simic.training.checkpoint_store import CheckpointStore, read_checkpoint
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job

Settings = Mapping[str, Any]

NUM_CLASSES = 3
TINY = "tiny"
TINY_LM = "tiny_lm"
"""Has dropout."""

SMALL_POLICY = {"lstm_hidden_dim": 8, "feature_dim": 8}


def _images(num_rows: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(NUM_CLASSES, (num_rows,), generator=generator)
    noise = torch.randn(num_rows, 1, 8, 8, generator=generator)
    return Split(inputs=noise + targets.view(-1, 1, 1, 1), targets=targets)


def _tokens(num_rows: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(16, (num_rows, 9), generator=generator)
    return Split(inputs=text[:, :-1].contiguous(), targets=text[:, 1:].contiguous())


def _load_images(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(
        train=_images(48, 1), val=_images(24, 2), test=_images(30, 3), crop_padding=1
    )


def _load_tokens(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(train=_tokens(48, 1), val=_tokens(16, 2), test=_tokens(20, 3))


_LOSSES = {"baseline_loss": 1.1, "target_loss": 0.1, "loss_delta_std": 0.05}


def _spec(name: str, kind: TaskKind, host: CnnHostSpec | TransformerHostSpec) -> TaskSpec:
    return TaskSpec(
        name=name,
        summary="a task that costs next to nothing",
        kind=kind,
        dataset=name,
        host=host,
        batch_size=12,
        batch_mode=BatchMode.BROADCAST,
        defaults={
            "slots": host.slot_ids[:2],
            "max_epochs": 4,
            "n_envs": 2,
            "batch_size_per_env": 12,
            **SMALL_POLICY,
        },
        **_LOSSES,
    )


def register_tiny_tasks() -> None:
    """Register the tasks once per process."""
    if TINY in all_tasks():
        return
    cnn = CnnHostSpec(
        in_channels=1, image_size=8, num_classes=NUM_CLASSES, base_channels=2, num_blocks=2
    )
    lm = TransformerHostSpec(
        block_size=8, num_layers=2, num_heads=2, embed_dim=8, num_segments=2, vocab_size=16
    )
    register_task(_spec(TINY, TaskKind.CLASSIFICATION, cnn), load=_load_images)
    register_task(_spec(TINY_LM, TaskKind.LANGUAGE_MODEL, lm), load=_load_tokens)


def tiny_job(
    telemetry_dir: Path, *, run: Settings | None = None, task: str = TINY, **training: Any
) -> Job:
    """Return a small job on a tiny task."""
    register_tiny_tasks()
    layer = {
        "training": {"task": task, "n_episodes": 2, **training},
        "run": {"telemetry_dir": str(telemetry_dir), "fsync": "never", **(run or {})},
    }
    job, _ = merge_job(("test", layer), tasks=all_tasks())
    return job


def tiny_run(telemetry_dir: Path, *, command: str = "ppo", **settings: Any) -> TrainingResult:
    """Run a small job to its end."""
    return run_job(tiny_job(telemetry_dir, **settings), command=command)


def lines_of(run_dir: Path, *, without: frozenset[EventType] = frozenset()) -> list[bytes]:
    """Return the run's events without what may differ between two equal runs."""
    return [
        msgspec.json.encode(event)
        for event in _events(run_dir / EVENTS_FILE)
        if event["event_type"] not in without
    ]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        event = msgspec.json.decode(line)
        for volatile in volatile_paths(EventType(event["event_type"])):
            _blank(event, volatile.split("."))
        yield event


def _blank(node: Any, path: list[str]) -> None:
    name, *rest = path
    places = list(node) if name == "*" and isinstance(node, dict) else [name]
    if name == "*" and isinstance(node, list):
        places = list(range(len(node)))
    for place in places:
        if not rest:
            node[place] = None
        elif node[place] is not None:
            _blank(node[place], rest)


def operational_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return the events of the operational log."""
    lines = (run_dir / OPERATIONAL_FILE).read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in lines]


def last_checkpoint(run_dir: Path) -> Path:
    """Return the newest checkpoint of a run."""
    path = CheckpointStore(run_dir / "checkpoints").latest()
    assert path is not None
    return path


def weights_digest(checkpoint: Path) -> str:
    """Return a hash over everything a checkpoint keeps of a controller."""
    state = read_checkpoint(checkpoint)
    del state["header"]
    return digest_of(state)


def digest_of(state: Any) -> str:
    """Return a hash over nested dicts of tensors and primitives."""
    stream = io.BytesIO()
    _write(state, stream)
    return hashlib.sha256(stream.getvalue()).hexdigest()


def _write(node: Any, stream: io.BytesIO) -> None:
    if isinstance(node, torch.Tensor):
        stream.write(f"{node.dtype}{tuple(node.shape)}".encode())
        stream.write(node.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(node, Mapping):
        for key in node:
            stream.write(repr(key).encode())
            _write(node[key], stream)
    elif isinstance(node, list | tuple):
        for item in node:
            _write(item, stream)
    else:
        stream.write(repr(node).encode())
