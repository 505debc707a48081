"""Puts the checkpoint of a training run into the package, without what belongs to one machine.

Usage: python -m tools.ship_policy evidence/policy-1.pt digits_growth
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.config import RunOptions
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint
from esper.simic.training.checkpoints.resuming import load_run

__all__ = ["main"]

ASSETS: Final = Path(__file__).parents[1] / "src" / "esper" / "simic" / "assets"
MAX_BYTES: Final = 3_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Write the policy and return 0, or report why it cannot be shipped."""
    parser = argparse.ArgumentParser(prog="python -m tools.ship_policy", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, default=ASSETS, metavar="DIR")
    arguments = parser.parse_args(argv)
    loaded = load_run(arguments.checkpoint)
    if loaded.controller is None:
        parser.error(f"{arguments.checkpoint}: {loaded.command!r} has no policy to ship")
    job = msgspec.structs.replace(loaded.job, run=RunOptions())
    header = msgspec.to_builtins(msgspec.structs.replace(loaded.header, job=job))
    data = encode_checkpoint({"header": header, **loaded.controller})
    if len(data) > MAX_BYTES:
        parser.error(f"{arguments.checkpoint}: {len(data)} bytes, more than {MAX_BYTES}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.name}.pt"
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes, {loaded.state.rounds_completed} rounds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
