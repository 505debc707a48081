"""The seed modules, in one table per host topology."""

from esper.kasmina.blueprints.registry import SEEDS, blueprint_params, build_seed
from esper.kasmina.blueprints.seed import Seed

__all__ = ["SEEDS", "Seed", "blueprint_params", "build_seed"]
