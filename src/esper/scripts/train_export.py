"""`esper-train export`: write a grown network in a format that is read without Esper."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from esper.leyline.errors import ExitCode
from esper.leyline.exporting import ExportFormat, ExportReport
from esper.leyline.printable import printable
from esper.scripts.terminal import print_json

__all__ = ["add_export_flags", "run_export"]


def add_export_flags(parser: ArgumentParser) -> None:
    """Add the flags of `export`."""
    parser.add_argument(
        "path", type=Path, metavar="FILE|RUN", help="grown network, or run (for its grown.pt)"
    )
    parser.add_argument(
        "--to",
        choices=[form.value for form in ExportFormat],
        required=True,
        metavar="FORMAT",
        help=f"one of {', '.join(ExportFormat)}",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: beside the network, with the format's suffix)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run_export(arguments: Namespace) -> int:
    """Export a grown network."""
    from esper.simic.exporting.export import export_grown  # loads torch

    report = export_grown(arguments.path, ExportFormat(arguments.to), arguments.output)
    if arguments.json:
        print_json(report)
    else:
        print(printable(_sentence(report)))
    return ExitCode.OK


def _sentence(report: ExportReport) -> str:
    shape = ", ".join(["batch", *map(str, report.input_shape)])
    unit = "token ids"
    if report.input_dtype != "int64":
        unit = "numbers as the data set stores them"
    if report.pixel_mean is not None:
        unit = "pixels as the data set stores them, not standardized"
    return (
        f"{report.path}: {report.format}, {report.num_params:,} parameters; takes "
        f"{report.input_dtype} of shape ({shape}): {unit}"
    )
