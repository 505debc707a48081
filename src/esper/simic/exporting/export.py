"""Exports a grown network to a file that is read without Esper."""

from pathlib import Path

import msgspec

from esper.leyline.errors import RunFailedError, UnreadableFileError, UsageError
from esper.leyline.exporting import ExportFormat, ExportReport
from esper.nissa.reading.run_lookup import find_run
from esper.nissa.storage.files import FileSystem, write_atomically
from esper.simic.exporting.formats import FORMATS
from esper.simic.exporting.program import export_program
from esper.simic.training.checkpoints.grown import GROWN_FILE, load_grown_with_header

__all__ = ["export_grown"]


def export_grown(source: Path, to: ExportFormat, output: Path | None = None) -> ExportReport:
    """Write a grown network in another format.

    Args:
        source: its file, or the run that it belongs to.
        to: the format.
        output: the file to write; None puts it beside the network.
    """
    form = FORMATS[to]
    form.check(to)
    path = source if source.is_file() else _network_of(find_run(source))
    output = path.with_suffix(form.suffix) if output is None else output
    if output.resolve() == path.resolve():
        raise UsageError(f"{output}: the export would replace the network; name another file")
    network, header = load_grown_with_header(path)
    program = export_program(network, header, path)
    data = form.encode(program, msgspec.json.encode(header).decode())
    try:
        write_atomically(FileSystem(), output, data)
    except OSError as error:
        raise RunFailedError(f"{output}: cannot be written: {error.strerror}") from error
    assert header.input_shape is not None, "the program could not have been traced"
    return ExportReport(
        path=str(output),
        format=to,
        task=header.task,
        num_bytes=len(data),
        num_params=sum(parameter.numel() for parameter in network.parameters()),
        input_shape=header.input_shape,
        input_dtype="int64" if header.takes_tokens else "float32",
        pixel_mean=header.pixel_mean,
        pixel_std=header.pixel_std,
    )


def _network_of(run_dir: Path) -> Path:
    path = run_dir / GROWN_FILE
    if not path.exists():
        raise UnreadableFileError(
            run_dir, "the run has no grown network; it is written when a round has finished"
        )
    return path
