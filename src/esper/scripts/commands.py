"""The console scripts: both commands, with signals handled while their modules load."""

from esper.scripts.startup import end_process, prepare_process

__all__ = ["telemetry", "train"]


def train() -> int:
    """Run `esper-train` as a command."""
    prepare_process()
    from esper.scripts.train import main  # takes a moment, in which a signal may arrive

    return end_process(main())


def telemetry() -> int:
    """Run `esper-telemetry` as a command."""
    prepare_process()
    from esper.scripts.telemetry import main  # takes a moment, in which a signal may arrive

    return end_process(main())
