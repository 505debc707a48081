"""Jobs on probes, without events that nobody reads."""

from pathlib import Path
from typing import Any

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job

__all__ = ["probe_job"]


def probe_job(name: str, telemetry_dir: Path, **training: Any) -> Job:
    """Return the job of a probe."""
    layer = {
        "training": {"task": f"probe:{name}", "telemetry": {"level": "off"}, **training},
        "run": {"telemetry_dir": str(telemetry_dir), "fsync": "never"},
    }
    return merge_job(("test", layer))[0]
