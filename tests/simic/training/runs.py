"""Small real runs, and what may be compared of two of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tools.soak.fingerprints import digest_of, latest_checkpoint
from tools.soak.tiny import NUM_CLASSES, image_split, text_split, tiny_task

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import CnnHostSpec, TaskKind, TaskSpec, TransformerHostSpec
from esper.leyline.telemetry import EventType, volatile_paths
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import all_tasks, register_task
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job

Settings = Mapping[str, Any]

TINY = "tiny"
TINY_LM = "tiny_lm"
"""Has dropout."""

SMALL_POLICY = {"lstm_hidden_dim": 8, "feature_dim": 8}


def _load_images(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(
        train=image_split(48, 1), val=image_split(24, 2), test=image_split(30, 3), crop_padding=1
    )


def _load_tokens(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(train=text_split(48, 1), val=text_split(16, 2), test=text_split(20, 3))


def _task(name: str, kind: TaskKind, host: CnnHostSpec | TransformerHostSpec) -> TaskSpec:
    defaults = {
        "slots": host.slot_ids[:2],
        "max_epochs": 4,
        "n_envs": 2,
        "batch_size_per_env": 12,
        **SMALL_POLICY,
    }
    return tiny_task(name, kind, host, defaults=defaults)


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
    register_task(_task(TINY, TaskKind.CLASSIFICATION, cnn), load=_load_images)
    register_task(_task(TINY_LM, TaskKind.LANGUAGE_MODEL, lm), load=_load_tokens)


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
    path = latest_checkpoint(run_dir)
    assert path is not None
    return path


def weights_digest(checkpoint: Path) -> str:
    """Return a hash over everything a checkpoint keeps of a controller."""
    state = read_checkpoint(checkpoint)
    del state["header"]
    return digest_of(state)
