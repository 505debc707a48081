"""The law of growth of a probe: hidden draws, the host's curve, and what seeds add to it."""

import math
from collections.abc import Sequence
from itertools import combinations
from random import Random

import msgspec

from esper.kasmina.seed import SeedState
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.streams import StreamPurpose, stream_seed

__all__ = ["Fate", "accuracy_pct", "draw_fate", "loss_of", "visible_effect_pp", "worth_pp"]


class Fate(msgspec.Struct, frozen=True):
    """What is drawn for an env and hidden from the policy."""

    kind: int
    duds: tuple[bool, ...]
    """Whether each seed is a dud, in the order of germination."""


def draw_fate(
    spec: ProbeHostSpec, *, run_seed: int, round_index: int, env_id: int, num_seeds: int
) -> Fate:
    """Draw the fate of an env from its own stream; it depends on nothing else."""
    source = stream_seed(run_seed, purpose=StreamPurpose.PROBE, round=round_index, env=env_id)
    rng = Random(source)
    # Drawn first: the kind does not depend on how many seeds an episode could have.
    kind = rng.randrange(len(spec.gain_pp))
    return Fate(kind, tuple(rng.random() < spec.dud_share for _ in range(num_seeds)))


def worth_pp(spec: ProbeHostSpec, fate: Fate, seed: SeedState, seed_index: int) -> float:
    """Return what a seed adds to the accuracy at full alpha; `seed_index` counts germinations."""
    if seed.germinated_at_step < spec.earliest_step:
        return spec.early_pp
    if fate.duds[seed_index]:
        return spec.dud_pp
    if spec.blueprints and seed.blueprint != spec.blueprints[fate.kind]:
        return spec.wrong_pp
    return spec.gain_pp[fate.kind]


def visible_effect_pp(spec: ProbeHostSpec, seed: SeedState, worth: float) -> float:
    """Return what a seed adds now: its worth times alpha, and nothing before it shows."""
    has_effect = seed.is_blended and seed.age_steps >= spec.shows_at_age
    return seed.alpha.alpha * worth if has_effect else 0.0


def accuracy_pct(
    spec: ProbeHostSpec, fate: Fate, step: int, effects_pp: Sequence[float], alphas: Sequence[float]
) -> float:
    """Return the accuracy of the host with the seeds that are switched on.

    Args:
        spec: the probe.
        fate: the env's hidden draws.
        step: step of the episode.
        effects_pp: what each seed that is switched on adds.
        alphas: the alpha of each of them, for interference.
    """
    way_left = math.exp(-step / spec.rise_steps)
    host = spec.end_pct - (spec.end_pct - spec.start_pct) * way_left
    first, end = spec.cue_steps
    if first <= step < end:
        host += spec.cue_pp if fate.kind == 0 else -spec.cue_pp
    # Interference of every pair, as strong as both are blended in.
    overlap = sum(one * other for one, other in combinations(alphas, 2))
    grown = host + sum(effects_pp) - spec.interference_pp * overlap
    return min(max(grown, 0.0), 100.0)


def loss_of(spec: ProbeHostSpec, accuracy: float) -> float:
    """Return a loss that falls as accuracy rises: that of a random guess at 0 %, 0 at 100 %."""
    return math.log(spec.num_classes) * (1.0 - accuracy / 100.0)
