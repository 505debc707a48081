"""The sink `tensorboard[:DIR]`: event files for TensorBoard, written without torch."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event as BoardEvent
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from esper.leyline.errors import UsageError
from esper.leyline.telemetry import Event
from esper.leyline.untyped_json import readable_json
from esper.nissa.sinks.contract import SinkRequest
from esper.nissa.sinks.fields import Measurement, Measurer, Shape
from esper.nissa.storage.run_directory import TENSORBOARD_DIRECTORY

__all__ = ["open_sink"]

NUM_BUCKETS: Final = 20
MAX_TABLE_ROWS: Final = 500


class _TensorBoardSink:
    def __init__(self, directory: Path, request: SinkRequest) -> None:
        self._writer = EventFileWriter(str(directory))
        self._measurer = Measurer(request.started)
        if request.manifest is not None and not request.is_continued:
            text = readable_json(request.manifest.job.training).decode()
            self._add([_text("configuration", f"```\n{text}```")], 0, 0.0)

    def write(self, events: Sequence[Event]) -> None:
        """Write the measurements of events, with the time at which each event was made."""
        for event in events:
            for item in self._measurer.measure(event):
                self._add([_value(item)], item.place, event.ts)
        self._writer.flush()

    def _add(self, values: Sequence[Summary.Value], step: int, ts: float) -> None:
        self._writer.add_event(
            BoardEvent(wall_time=ts, step=step, summary=Summary(value=list(values)))
        )

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def open_sink(request: SinkRequest) -> _TensorBoardSink:
    """Open an event file in the directory of the run, or below the one that was named."""
    directory = request.run_dir / TENSORBOARD_DIRECTORY
    if request.target is not None:
        directory = Path(request.target) / request.run_dir.name
    if not request.is_continued and any(directory.glob("events.out.tfevents.*")):
        raise UsageError(
            f"{directory}: has event files of this run already; remove them, or choose another "
            "directory"
        )
    return _TensorBoardSink(directory, request)


def _value(item: Measurement) -> Summary.Value:
    match item.value:
        case float():
            return Summary.Value(tag=item.name, simple_value=item.value)
        case _ if item.shape is Shape.HISTOGRAM:
            numbers = [value for value in item.value if isinstance(value, float)]
            return Summary.Value(tag=item.name, histo=_histogram(numbers))
        case _:
            rows = [row for row in item.value if isinstance(row, dict)]
            return _text(item.name, _markdown(rows))


def _histogram(numbers: Sequence[float]) -> HistogramProto:
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    width = (high - low) / NUM_BUCKETS or 1.0
    limits = [low + width * (index + 1) for index in range(NUM_BUCKETS)]
    counts = [0] * NUM_BUCKETS
    for number in numbers:
        counts[min(int((number - low) / width), NUM_BUCKETS - 1)] += 1
    return HistogramProto(
        min=low,
        max=high,
        num=len(numbers),
        sum=math.fsum(numbers),
        sum_squares=math.fsum(number * number for number in numbers),
        bucket_limit=limits,
        bucket=counts,
    )


def _markdown(rows: Sequence[dict[str, object]]) -> str:
    if not rows:
        return "none"
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines[: MAX_TABLE_ROWS + 2])


def _text(name: str, text: str) -> Summary.Value:
    tensor = TensorProto(
        dtype=DT_STRING,
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        string_val=[text.encode()],
    )
    metadata = create_summary_metadata(display_name=name, description="")
    return Summary.Value(tag=f"{name}/text_summary", metadata=metadata, tensor=tensor)
