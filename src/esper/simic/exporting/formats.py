"""The formats of an exported network: each turns a program into the bytes of a file."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch.export import ExportedProgram

from esper.leyline.exporting import ExportFormat
from esper.leyline.extras import require_packages
from esper.simic.exporting.graph import graph_of
from esper.simic.exporting.program import INPUT, OUTPUT

__all__ = ["FORMATS", "Format"]

GRAPH_KEY: Final = "graph"
HEADER_KEY: Final = "esper"


class Format(NamedTuple):
    """How a program is written."""

    suffix: str
    needs: tuple[str, ...]
    """Packages of the extra `export`."""
    encode: Callable[[ExportedProgram, str], bytes]
    """Maps a program and a description as JSON to the contents of the file."""

    def check(self, name: ExportFormat) -> None:
        """Raise if a library that this format needs is not installed."""
        require_packages(f"--to {name}", *self.needs)


def _torch_export(program: ExportedProgram, header: str) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={HEADER_KEY: header})
    return buffer.getvalue()


def _safetensors(program: ExportedProgram, header: str) -> bytes:
    from safetensors.torch import save  # an extra

    graph, weights = graph_of(program)
    metadata = {GRAPH_KEY: msgspec.json.encode(graph).decode(), HEADER_KEY: header}
    return save(weights, metadata)


def _onnx(program: ExportedProgram, header: str) -> bytes:
    with _quiet():
        exported = torch.onnx.export(
            program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    assert exported is not None, "torch.onnx.export returns a program unless it writes a file"
    model: Any = exported.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = HEADER_KEY, header
    encoded: bytes = model.SerializeToString()
    return encoded


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch prints and logs while it converts out of the command's output."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


FORMATS: Final[Mapping[ExportFormat, Format]] = {
    ExportFormat.SAFETENSORS: Format(".safetensors", ("safetensors",), _safetensors),
    ExportFormat.TORCH_EXPORT: Format(".pt2", (), _torch_export),
    ExportFormat.ONNX: Format(".onnx", ("onnx", "onnxscript"), _onnx),
}
"""The writer of each format."""
