"""The sink `wandb[:PROJECT]`: Weights & Biases, online or offline as `WANDB_MODE` says."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import wandb

from esper.leyline.telemetry import Event
from esper.nissa.sinks.contract import SinkRequest
from esper.nissa.sinks.fields import Measurement, Measurer, Shape

__all__ = ["open_sink"]

DEFAULT_PROJECT: Final = "esper"
MAX_TABLE_ROWS: Final = 10_000
"""Of each table; W&B shows no more."""


class _WandbSink:
    def __init__(self, run: Any, request: SinkRequest) -> None:
        self._run = run
        self._measurer = Measurer(request.started)
        self._tables: dict[str, list[dict[str, object]]] = {}
        # W&B's own step only rises, while envs and rounds have steps of their own.
        run.define_metric("*", step_metric="round")
        for group in ("host", "decision"):
            run.define_metric(f"{group}/*", step_metric="env_step")

    def write(self, events: Sequence[Event]) -> None:
        """Log the measurements of events, those of one event together."""
        for event in events:
            items = list(self._measurer.measure(event))
            values = {item.name: _loggable(item) for item in items if item.shape is not Shape.TABLE}
            if values:
                axis = "round" if event.step is None else "env_step"
                self._run.log({axis: items[0].place, **values})
            for item in items:
                if item.shape is Shape.TABLE:
                    rows = self._tables.setdefault(item.name, [])
                    rows += [row for row in _items(item) if isinstance(row, dict)]
                    del rows[:-MAX_TABLE_ROWS]

    def close(self) -> None:
        """Log the tables, which cannot grow once logged, and finish the run."""
        for name, rows in self._tables.items():
            if rows:
                columns = list(rows[0])
                data = [[row[column] for column in columns] for row in rows]
                self._run.log({name: wandb.Table(columns=columns, data=data)})
        self._run.finish()


def open_sink(request: SinkRequest) -> _WandbSink:
    """Begin a W&B run with the id, name, group, tags and configuration of this one."""
    manifest = request.manifest
    job = None if manifest is None else manifest.job
    run = wandb.init(
        project=request.target or DEFAULT_PROJECT,
        dir=str(request.run_dir),
        id=None if manifest is None else manifest.run_id,
        resume="allow",
        name=None if job is None else job.run.name or request.run_dir.name,
        group=None if job is None else job.training.group_id,
        tags=None if job is None else [f"{key}={value}" for key, value in job.run.tags.items()],
        config=None if job is None else msgspec.to_builtins(job.training),
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_stats=True,
            x_save_requirements=False,
        ),
    )
    return _WandbSink(run, request)


def _loggable(item: Measurement) -> object:
    return item.value if isinstance(item.value, float) else wandb.Histogram(list(_items(item)))


def _items(item: Measurement) -> tuple[object, ...]:
    return () if isinstance(item.value, float) else item.value
