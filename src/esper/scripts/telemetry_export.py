"""`esper-telemetry export`."""

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Final

from esper.leyline.errors import (
    EsperError,
    ExitCode,
    UnknownNameError,
    UnreadableFileError,
    UsageError,
    reason_of,
)
from esper.leyline.printable import printable
from esper.nissa.reading.query import export_views
from esper.nissa.reading.run_lookup import find_log, find_run
from esper.nissa.sinks.delivery import open_delivery
from esper.nissa.sinks.registry import check_sink, sink_names
from esper.nissa.storage.log_locks import is_locked, locked_files

__all__ = ["run_export"]

FILE_FORMATS: Final = ("parquet", "csv")


def run_export(arguments: Namespace) -> int:
    """Write a run to a sink or to files."""
    name, separator, target = arguments.to.partition(":")
    if arguments.output is not None and separator:
        raise UsageError(f"--to {arguments.to}: give {target!r} or -o {arguments.output}, not both")
    target = arguments.output or target or None
    if name in FILE_FORMATS:
        if arguments.is_continued:
            raise UsageError(f"--continue: {name} files are written as a whole; omit it")
        _export_files(find_log(arguments.run), target, name)
    elif name not in (known := sink_names()):
        raise UnknownNameError("format", name, {*FILE_FORMATS, *known})
    else:
        sink = name if target is None else f"{name}:{target}"
        _export_to_sink(find_run(arguments.run), sink, is_continued=arguments.is_continued)
    return ExitCode.OK


def _export_files(log: Path, target: str | None, form: str) -> None:
    """Write the views to a directory that appears once they are all complete."""
    directory = log.parent / form if target is None else Path(target)
    if directory.exists():
        raise UnreadableFileError(directory, "exists already; remove it or choose another with -o")
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{form}-") as temporary:
        new = Path(temporary) / form
        new.mkdir()
        export_views([log], new, form)
        new.rename(directory)
    print(printable(f"wrote {len(list(directory.iterdir()))} views to {directory}"))


def _export_to_sink(run_dir: Path, text: str, *, is_continued: bool) -> None:
    spec = check_sink(text, "--to")
    log = find_log(run_dir)
    if is_continued and is_locked(log, locked_files() or frozenset()):
        raise UsageError(f"{run_dir}: the run is still going, and its sinks deliver it")
    try:
        delivery = open_delivery(log, spec, is_continued=is_continued)
        first_seq = delivery.next_seq
        delivery.run()
    except (EsperError, KeyboardInterrupt):
        raise
    except Exception as error:  # a sink may raise anything
        raise UsageError(f"--to {text}: {reason_of(error)}") from error
    since = f", from event {first_seq} on" if first_seq else ""
    print(printable(f"delivered {delivery.num_delivered} events to {text}{since}"))
