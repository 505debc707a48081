"""Probes as tables: analytic models of growth whose best policy is known, to test a learner."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from esper.leyline.actions import Blueprint, Topology
from esper.leyline.slots import format_slot_id

__all__ = [
    "LOTTERY_LIFECYCLE",
    "PROBES",
    "PROBE_PREFIX",
    "RENTED",
    "HostKind",
    "OfferedSeed",
    "Probe",
    "ProbeHostSpec",
]

PROBE_PREFIX: Final = "probe:"

ProbeSettings: TypeAlias = Mapping[str, object]


class OfferedSeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a blueprint costs and is worth in each slot, in action order."""

    blueprint: Blueprint
    num_params: tuple[int, ...]
    worth_pct: tuple[float, ...]
    """Share of the missing accuracy that a grown seed adds."""


class HostKind(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of env has instead of the curve and the duds of its probe."""

    name: str
    weight: float = 1.0
    """Share of the envs, relative to the other kinds."""
    end_pct: float
    rise_steps: float
    end_spread_pp: float = 0.0
    worth_factor: float = 1.0
    """Of every seed that is no dud."""
    dud_share: float = 0.0


class ProbeHostSpec(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """The parameters of an analytic host and of its seeds; there is neither network nor data.

    Every env has a kind, and every seed a worth, both hidden. A seed that is blended in changes the
    accuracy by its worth times its alpha.
    """

    num_slots: int = 1
    num_params: int = 1000
    """Parameters of the host that rent and reports count."""
    seed_params: int = 100
    start_pct: float
    """Accuracy of the host before its first step."""
    end_pct: float
    rise_steps: float = 1.0
    """Steps after which the host has covered 63 % of the way from start to end."""
    gain_pp: tuple[float, ...]
    """Worth of a seed in each kind of env; there are as many kinds, all equally likely."""
    kinds: tuple[HostKind, ...] = ()
    """Replaces `gain_pp` where kinds of envs differ in more than the worth of a seed."""
    cue_pp: float = 0.0
    """How far the accuracy of the first kind rises and that of the others falls during the cue."""
    cue_steps: tuple[int, int] = (0, 0)
    """First step with the cue, and the first without it again."""
    blueprints: tuple[Blueprint, ...] = ()
    """The blueprint that suits each kind; without any, all blueprints do."""
    wrong_pp: float = 0.0
    """Worth of a seed whose blueprint does not suit the env."""
    dud_share: float = 0.0
    """Probability that a seed is a dud."""
    dud_pp: float = 0.0
    """Worth of a dud."""
    earliest_step: int = 0
    """First step in which planting succeeds."""
    early_pp: float = 0.0
    """Worth of a seed that was planted before that."""
    shows_at_age: int = 0
    """Steps since germination after which a seed has its effect; before, it has none."""
    interference_pp: float = 0.0
    """Lost for each pair of seeds that are blended in, times both alphas."""
    starts_with_seed: bool = False
    """Whether the first slot holds a seed from the first step on."""
    offers: tuple[OfferedSeed, ...] = ()
    """Replaces `gain_pp` and `seed_params`. A worth, a dud's included, is then a share of the
    missing accuracy, so that two seeds of 50 % leave a quarter of it."""
    worth_factor: float = 1.0
    """Of the worth of every seed that is no dud."""
    grows_over_steps: float = 0.0
    """Steps after it begins to show in which a seed reaches 63 % of its worth; 0: at once."""
    luck_spread: float = 0.0
    """The worth of a seed is multiplied by up to 1 plus or minus this."""
    end_spread_pp: float = 0.0
    """The host's end differs from `end_pct` by up to this."""
    noise_pp: float = 0.0
    """Standard deviation of a measured accuracy; gradients are then noise as well, and tell nothing
    about a seed's worth."""

    @property
    def kind_weights(self) -> dict[str, float]:
        """Return every kind of env by name, with its share relative to the others."""
        if self.kinds:
            return {kind.name: kind.weight for kind in self.kinds}
        return {f"kind-{index}": 1.0 for index in range(len(self.gain_pp))}

    def of_kind(self, index: int) -> "ProbeHostSpec":
        """Return the spec of the envs of one kind."""
        if not self.kinds:
            return self
        kind = self.kinds[index]
        return msgspec.structs.replace(
            self,
            end_pct=kind.end_pct,
            rise_steps=kind.rise_steps,
            end_spread_pp=kind.end_spread_pp,
            dud_share=kind.dud_share,
            worth_factor=kind.worth_factor,
        )

    @property
    def topology(self) -> Topology:
        """Return the family of hosts whose blueprints can be planted."""
        return Topology.CNN

    @property
    def num_classes(self) -> int:
        """Return the number of outcomes a random guess chooses from."""
        return 10

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Return the slots it offers, in action order."""
        return tuple(format_slot_id(0, index) for index in range(self.num_slots))


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe: what it tests, its model, and the settings with which it is learned quickly."""

    name: str
    summary: str
    host: ProbeHostSpec
    settings: ProbeSettings


RENTED: Final[ProbeSettings] = {
    # The gain of accuracy at the end, minus rent for the parameters of every step: a seed that does
    # not pay for itself is better not planted.
    "reward_mode": "basic",
    "reward": {
        "disable_pbrs": True,
        "param_budget": 1000,
        "param_penalty_weight": 0.2,
        "basic_acc_delta_weight": 5.0,
        "basic_fossilize_base_bonus": 0.0,
        "basic_contribution_scale": 0.0,
        "basic_fossilize_invalid_penalty": 0.0,
        "basic_fossilize_noncontributing_penalty": 0.0,
    },
}
"""The reward of tasks with contexts, and of the probe that resembles one of them."""

_ALWAYS_LEGAL: Final = 0
_NEVER_LEGAL: Final = 10_000
"""An age that no seed reaches: its prune is never legal."""


def _lifecycle(*, min_training_steps: int = 1, min_prune_age_steps: int) -> ProbeSettings:
    """Return rules under which seeds advance by themselves, as fast as they can."""
    return {
        "auto_forward": (1, 2, 3),
        "min_training_steps": min_training_steps,
        "min_prune_age_steps": min_prune_age_steps,
        "embargo_steps": 1,
    }


LOTTERY_LIFECYCLE: Final = _lifecycle(min_prune_age_steps=6)
"""Rules under which a dud can be replaced: it is removed three steps after it is blended in, and
two steps later its slot is free again."""

_LEARNER: Final[ProbeSettings] = {
    "n_envs": 64,
    "n_episodes": 60,
    "lstm_hidden_dim": 32,
    "feature_dim": 32,
    "lr": 3e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "target_kl": 0.1,
    "entropy_coef_start": 0.02,
    "entropy_coef_end": 0.0,
    "entropy_coef_min": 0.0,
    "entropy_anneal_episodes": 64 * 50,
    "value_warmup_batches": 0,
}
"""A small policy and many short episodes."""

_EXPLORING: Final[ProbeSettings] = {
    **_LEARNER,
    # Where most plantings cost, a policy gives up planting, or all blueprints but one, before it
    # has tried them at the right step. Advantages have a deviation of 1: only a bonus of that order
    # keeps them alive.
    "entropy_coef_start": 0.3,
}
"""The same for probes in which most plantings cost."""

_FINAL_ACCURACY: Final[ProbeSettings] = {
    "reward_mode": "simplified",
    "reward": {
        "disable_pbrs": True,
        "simplified_action_cost": 0.0,
        "simplified_fossil_bonus": 0.0,
    },
}
"""The return is three times the final accuracy as a fraction."""

_FOSSIL_ACCURACY: Final[ProbeSettings] = {
    "reward_mode": "sparse",
    "reward": {"disable_pbrs": True, "param_penalty_weight": 0.0},
}
"""The return is the final accuracy, as a fraction, with the fossils alone."""

_CONSTANT: Final = Probe(
    name="constant",
    summary="probe: every policy earns the same; what a critic learns is one number",
    host=ProbeHostSpec(start_pct=50.0, end_pct=50.0, gain_pp=(0.0,)),
    settings={
        **_LEARNER,
        **_FINAL_ACCURACY,
        "max_epochs": 8,
        "n_episodes": 50,
        "lifecycle": _lifecycle(min_prune_age_steps=_ALWAYS_LEGAL),
    },
)

_DISCOUNT: Final = Probe(
    name="discount",
    summary="probe: planting costs now and pays at the end; with gamma 0.8 it pays from step 4 on",
    # Nothing shows before age 5, so that a seed planted after step 6 cannot pay in part.
    host=ProbeHostSpec(start_pct=30.0, end_pct=30.0, gain_pp=(30.0,), shows_at_age=5),
    settings={
        **_EXPLORING,
        "reward_mode": "simplified",
        "reward": {
            "disable_pbrs": True,
            "simplified_action_cost": -0.18,
            "simplified_fossil_bonus": 0.0,
        },
        "gamma": 0.8,
        "max_epochs": 12,
        "lifecycle": _lifecycle(min_prune_age_steps=_NEVER_LEGAL),
    },
)

_MEMORY: Final = Probe(
    name="memory",
    summary="probe: what the host showed at step 1 decides at step 30 whether to keep its seed",
    host=ProbeHostSpec(
        start_pct=20.0,
        end_pct=20.0,
        gain_pp=(30.0, -20.0),
        cue_pp=15.0,
        cue_steps=(1, 2),
        shows_at_age=32,
        starts_with_seed=True,
    ),
    settings={
        **_LEARNER,
        **_FOSSIL_ACCURACY,
        "max_epochs": 33,
        "n_episodes": 40,
        "entropy_anneal_episodes": 64 * 32,
        "lifecycle": _lifecycle(min_training_steps=26, min_prune_age_steps=30),
    },
)

_CONTEXT: Final = Probe(
    name="context",
    summary="probe: two kinds of hosts look different at step 3 and need different blueprints",
    host=ProbeHostSpec(
        start_pct=40.0,
        end_pct=40.0,
        gain_pp=(30.0, 30.0),
        cue_pp=15.0,
        cue_steps=(3, 4),
        blueprints=(Blueprint.CONV_LIGHT, Blueprint.ATTENTION),
        wrong_pp=-30.0,
    ),
    settings={
        **_EXPLORING,
        **_FINAL_ACCURACY,
        # At 0.003 some policies keep one blueprint alone before they wait for the cue.
        "lr": 2e-3,
        "max_epochs": 12,
        "lifecycle": _lifecycle(min_prune_age_steps=_NEVER_LEGAL),
    },
)

_LOTTERY: Final = Probe(
    name="lottery",
    summary="probe: half of all seeds are duds, which only their contribution shows",
    host=ProbeHostSpec(
        start_pct=30.0,
        end_pct=30.0,
        gain_pp=(40.0,),
        dud_share=0.5,
        dud_pp=-20.0,
        shows_at_age=4,
    ),
    settings={
        **_LEARNER,
        **_FOSSIL_ACCURACY,
        # Time for two seeds, with some to spare: a first one may take until step 10.
        "max_epochs": 20,
        "lifecycle": _lifecycle(min_prune_age_steps=_ALWAYS_LEGAL),
    },
)

_PATIENCE: Final = Probe(
    name="patience",
    summary="probe: a seed that is planted before step 8 costs accuracy, a later one adds to it",
    host=ProbeHostSpec(
        start_pct=30.0,
        end_pct=30.0,
        gain_pp=(30.0,),
        earliest_step=8,
        early_pp=-20.0,
    ),
    settings={
        **_EXPLORING,
        **_FINAL_ACCURACY,
        "max_epochs": 16,
        "lifecycle": _lifecycle(min_prune_age_steps=_NEVER_LEGAL),
    },
)

_RENT: Final = Probe(
    name="rent",
    summary="probe: the host improves alone, and seeds cost more rent than they earn",
    host=ProbeHostSpec(
        num_slots=2,
        start_pct=20.0,
        end_pct=60.0,
        rise_steps=4.0,
        gain_pp=(5.0,),
        interference_pp=2.0,
    ),
    settings={
        **_LEARNER,
        "max_epochs": 12,
        "reward_mode": "basic",
        "reward": {
            "disable_pbrs": True,
            "param_budget": 1000,
            "param_penalty_weight": 3.0,
            "basic_fossilize_base_bonus": 0.0,
            "basic_contribution_scale": 0.0,
            "basic_fossilize_invalid_penalty": 0.0,
            "basic_fossilize_noncontributing_penalty": 0.0,
        },
        "lifecycle": _lifecycle(min_prune_age_steps=_ALWAYS_LEGAL),
    },
)

_OFFERS: Final = tuple(
    OfferedSeed(blueprint=blueprint, num_params=num_params, worth_pct=worth_pct)
    for blueprint, num_params, worth_pct in (
        (Blueprint.CONV_LIGHT, (152, 592, 2336), (70.0, 68.0, 48.0)),
        (Blueprint.ATTENTION, (12, 40, 144), (0.0, 0.0, 0.0)),
        (Blueprint.NORM, (9, 17, 33), (5.0, 8.0, 10.0)),
        (Blueprint.DEPTHWISE, (60, 152, 432), (50.0, 57.0, 30.0)),
        (Blueprint.BOTTLENECK, (648, 720, 864), (68.0, 72.0, 40.0)),
        (Blueprint.CONV_SMALL, (24, 80, 288), (15.0, 15.0, 10.0)),
        (Blueprint.CONV_HEAVY, (296, 1168, 4640), (80.0, 70.0, 55.0)),
    )
)

_GROWTH: Final = Probe(
    name="growth",
    summary="probe: the job of digits_lottery without networks: half of all seeds are duds",
    # Fitted by eye to 152 episodes of digits_lottery; see docs/probes.md.
    host=ProbeHostSpec(
        num_slots=3,
        num_params=390,
        start_pct=10.0,
        end_pct=40.0,
        rise_steps=25.0,
        end_spread_pp=12.0,
        gain_pp=(0.0,),
        offers=_OFFERS,
        dud_share=0.5,
        dud_pp=-5.0,
        shows_at_age=3,
        grows_over_steps=12.0,
        luck_spread=0.2,
        noise_pp=2.5,
    ),
    settings={
        **_LEARNER,
        **RENTED,
        "max_epochs": 40,
        # As the policy of digits_lottery, which can begin with the weights learned here.
        "lstm_hidden_dim": 64,
        "feature_dim": 64,
        "lifecycle": LOTTERY_LIFECYCLE,
    },
)

_CONTEXTS: Final = Probe(
    name="contexts",
    summary="probe: the job of closed_loop without networks: hosts differ in what growth is worth",
    # Curves and worths fitted by eye to 144 episodes of digits_contexts; see docs/probes.md.
    host=msgspec.structs.replace(
        _GROWTH.host,
        kinds=(
            HostKind(name="pointwise", end_pct=40.0, rise_steps=20.0, end_spread_pp=12.0),
            HostKind(name="spatial", end_pct=98.0, rise_steps=4.0, end_spread_pp=2.0),
            HostKind(
                name="permuted",
                end_pct=30.0,
                rise_steps=12.0,
                end_spread_pp=6.0,
                worth_factor=0.9,
            ),
            HostKind(
                name="noisy",
                end_pct=11.0,
                rise_steps=10.0,
                end_spread_pp=1.0,
                worth_factor=0.01,
            ),
            HostKind(
                name="lottery",
                weight=3.0,
                end_pct=40.0,
                rise_steps=20.0,
                end_spread_pp=12.0,
                dud_share=0.5,
            ),
        ),
        grows_over_steps=10.0,
        noise_pp=1.5,
    ),
    settings={
        **_GROWTH.settings,
        # With 64 envs, policies keep the first seed whatever it is worth.
        "n_envs": 192,
        "n_episodes": 60,
        "lr_end": 3e-4,
        "entropy_coef_start": 0.04,
        "entropy_anneal_episodes": 192 * 48,
    },
)

PROBES: Final[Mapping[str, Probe]] = {
    probe.name: probe
    for probe in (
        *(_CONSTANT, _DISCOUNT, _MEMORY, _CONTEXT, _LOTTERY, _PATIENCE, _RENT),
        *(_GROWTH, _CONTEXTS),
    )
}
"""The probes that ship with Esper; the task of one is `probe:NAME`."""
