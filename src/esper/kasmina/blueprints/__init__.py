"""The seed modules, in one table per host topology."""

from esper.kasmina.blueprints.registry import (
    OPTIONAL_SEEDS,
    SEEDS,
    blueprint_params,
    build_seed,
    check_registered,
    is_installed_blueprint,
    register_blueprint,
)
from esper.kasmina.blueprints.seed import Seed

__all__ = [
    "OPTIONAL_SEEDS",
    "SEEDS",
    "Seed",
    "blueprint_params",
    "build_seed",
    "check_registered",
    "is_installed_blueprint",
    "register_blueprint",
]
