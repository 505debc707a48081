"""`esper-telemetry mcp`."""

from argparse import Namespace

from esper.karn.mcp.server import serve_runs
from esper.leyline.errors import ExitCode, UnreadableFileError

__all__ = ["run_mcp"]


def run_mcp(arguments: Namespace) -> int:
    """Serve the runs of a directory to agents until standard input ends."""
    if not arguments.directory.is_dir():
        raise UnreadableFileError(arguments.directory, "not a directory of runs")
    serve_runs(arguments.directory)
    return ExitCode.OK
