"""`python -m tools.soak.guided_frame_fuzz SECONDS [SEED]`: coverage-guided; needs `atheris`."""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["websockets", "uvicorn.protocols", "esper.nissa.live"]):
    from tools.soak.frame_fuzz import SEEDS, frame_target


def main() -> None:
    """Fuzz for a time; libFuzzer ends the process, and prints an input that breaks anything."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    with frame_target() as target, tempfile.TemporaryDirectory() as name:
        for number, data in enumerate(SEEDS):
            Path(name, f"seed-{number}").write_bytes(data)
        limits = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=4096"]
        atheris.Setup([sys.argv[0], *limits, name], target.try_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
