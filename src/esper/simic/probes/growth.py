"""The law of growth of a probe: hidden draws, the host's curve, and what seeds add to it."""

import math
from collections.abc import Sequence
from itertools import combinations
from random import Random

import msgspec

from esper.kasmina.seed import SeedState
from esper.leyline.probes import OfferedSeed, ProbeHostSpec
from esper.leyline.streams import StreamPurpose, stream_seed

__all__ = [
    "Fate",
    "accuracy_pct",
    "draw_fate",
    "loss_of",
    "noise_of",
    "num_params_of",
    "visible_effect",
    "worth_of",
]


class Fate(msgspec.Struct, frozen=True):
    """What is drawn for an env and hidden from the policy."""

    kind: int
    duds: tuple[bool, ...]
    """Whether each seed is a dud, in the order of germination."""
    luck: tuple[float, ...] = ()
    """Factor of each seed's worth; empty if all are 1."""
    end_shift_pp: float = 0.0
    """How far the end of the host's curve is above the spec's."""


def draw_fate(
    spec: ProbeHostSpec,
    *,
    run_seed: int,
    round_index: int,
    env_id: int,
    num_seeds: int,
    kind: int | None = None,
) -> Fate:
    """Draw the fate of an env from its own stream; it depends on nothing else.

    Args:
        spec: the probe.
        run_seed: seed of the run.
        round_index: the round.
        env_id: the env.
        num_seeds: the most seeds that an episode can have.
        kind: the kind of the env; None draws it.
    """
    source = stream_seed(run_seed, purpose=StreamPurpose.PROBE, round=round_index, env=env_id)
    rng = Random(source)
    # Drawn first: the kind does not depend on how many seeds an episode could have.
    drawn = _drawn_kind(spec, rng)
    kind = drawn if kind is None else kind
    spec = spec.of_kind(kind)
    duds = tuple(rng.random() < spec.dud_share for _ in range(num_seeds))
    shift = spec.end_spread_pp * rng.uniform(-1.0, 1.0)
    spread = spec.luck_spread
    luck = tuple(rng.uniform(1.0 - spread, 1.0 + spread) for _ in range(num_seeds))
    return Fate(kind, duds, luck if spread else (), shift)


def _drawn_kind(spec: ProbeHostSpec, rng: Random) -> int:
    weights = list(spec.kind_weights.values())
    if not spec.kinds:
        return rng.randrange(len(weights))
    (kind,) = rng.choices(range(len(weights)), weights)
    return kind


def noise_of(*, run_seed: int, round_index: int, env_id: int) -> Random:
    """Return the stream of what an env's measurements are off by."""
    source = stream_seed(run_seed, purpose=StreamPurpose.PROBE_NOISE, round=round_index, env=env_id)
    return Random(source)


def worth_of(
    spec: ProbeHostSpec, fate: Fate, seed: SeedState, *, seed_index: int, slot_index: int
) -> float:
    """Return what a seed adds to the accuracy at full alpha, in points or as a share.

    Args:
        spec: the probe.
        fate: the env's hidden draws.
        seed: the seed.
        seed_index: number of germinations before it.
        slot_index: its slot, in action order.
    """
    luck = fate.luck[seed_index] if fate.luck else 1.0
    return luck * _plain_worth(spec, fate, seed, seed_index, slot_index)


def _plain_worth(
    spec: ProbeHostSpec, fate: Fate, seed: SeedState, seed_index: int, slot_index: int
) -> float:
    if seed.germinated_at_step < spec.earliest_step:
        return spec.early_pp
    if fate.duds[seed_index]:
        return spec.dud_pp
    if spec.offers:
        return spec.worth_factor * _offer_of(spec, seed.blueprint).worth_pct[slot_index]
    if spec.blueprints and seed.blueprint != spec.blueprints[fate.kind]:
        return spec.wrong_pp
    return spec.gain_pp[fate.kind]


def num_params_of(spec: ProbeHostSpec, blueprint: str, slot_index: int) -> int:
    """Return the parameters of a seed."""
    if spec.offers:
        return _offer_of(spec, blueprint).num_params[slot_index]
    return spec.seed_params


def _offer_of(spec: ProbeHostSpec, blueprint: str) -> OfferedSeed:
    """Return what a blueprint costs and is worth."""
    return next(offer for offer in spec.offers if offer.blueprint == blueprint)


def visible_effect(spec: ProbeHostSpec, seed: SeedState, worth: float) -> float:
    """Return what a seed adds now: the grown part of its worth times alpha, nothing at first."""
    age = seed.age_steps - spec.shows_at_age
    if not seed.is_blended or age < 0:
        return 0.0
    is_gradual = spec.grows_over_steps > 0.0
    grown = 1.0 - math.exp(-age / spec.grows_over_steps) if is_gradual else 1.0
    return seed.alpha.alpha * worth * grown


def accuracy_pct(
    spec: ProbeHostSpec, fate: Fate, step: int, effects: Sequence[float], alphas: Sequence[float]
) -> float:
    """Return the accuracy of the host with the seeds that are switched on.

    Args:
        spec: the probe.
        fate: the env's hidden draws.
        step: step of the episode.
        effects: what each seed that is switched on adds.
        alphas: the alpha of each of them, for interference.
    """
    way_left = math.exp(-step / spec.rise_steps)
    end = spec.end_pct + fate.end_shift_pp
    host = end - (end - spec.start_pct) * way_left
    first, after = spec.cue_steps
    if first <= step < after:
        host += spec.cue_pp if fate.kind == 0 else -spec.cue_pp
    # Interference of every pair, as strong as both are blended in.
    overlap = sum(one * other for one, other in combinations(alphas, 2))
    gain = sum(effects)
    if spec.offers:
        gain = (100.0 - host) * (1.0 - math.prod(1.0 - effect / 100.0 for effect in effects))
    grown = host + gain - spec.interference_pp * overlap
    return min(max(grown, 0.0), 100.0)


def loss_of(spec: ProbeHostSpec, accuracy: float) -> float:
    """Return a loss that falls as accuracy rises: that of a random guess at 0 %, 0 at 100 %."""
    return math.log(spec.num_classes) * (1.0 - accuracy / 100.0)
