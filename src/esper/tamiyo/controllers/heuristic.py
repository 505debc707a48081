"""The heuristic controller: germinates on a plateau, fossilizes seeds that help, prunes others.

A host that improves slowly but steadily never reaches a plateau; it gets a seed after
`patience_steps` without one.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from esper.leyline.actions import ActionSpec, Blueprint, Op, Topology
from esper.leyline.errors import InvalidValueError
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.tamiyo.controllers.protocol import Choice, Situation

__all__ = ["HeuristicController", "HeuristicRules"]

ROTATIONS: Final = {
    Topology.CNN: (
        Blueprint.CONV_LIGHT,
        Blueprint.CONV_HEAVY,
        Blueprint.ATTENTION,
        Blueprint.NORM,
        Blueprint.DEPTHWISE,
    ),
    Topology.TRANSFORMER: (
        Blueprint.LORA,
        Blueprint.MLP_SMALL,
        Blueprint.ATTENTION,
        Blueprint.NORM,
        Blueprint.LORA_LARGE,
    ),
}


class HeuristicRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The heuristic's thresholds, in steps and percentage points."""

    plateau_steps: int = 3
    min_step: int = 5
    patience_steps: int = 10
    """Consecutive steps without a growing seed after which one is germinated in any case."""
    prune_after_steps: int = 5
    prune_harm_pp: float = 2.0
    """A blending seed is pruned if its contribution is below minus this."""
    fossilize_contribution_pp: float = 0.5
    embargo_steps: int = 5
    ransomware_contribution_pp: float = 0.1
    """Contribution above which a seed counts as ransomware if the host got worse since germination.

    The host depends on such a seed without gaining from it, so it is pruned.
    """
    penalty: float = 2.0
    """Added to a blueprint whose seed is pruned."""
    penalty_decay: float = 0.5
    """Factor on every penalty per step."""
    penalty_floor: float = 0.1
    """Penalties below this are dropped."""
    skip_penalty: float = 3.0
    """Blueprints with at least this penalty are skipped in the rotation."""


@dataclass(eq=False, slots=True)
class _EnvMemory:
    """The heuristic's state for one env."""

    next_index: int = 0
    idle_steps: int = 0
    """Consecutive steps without a growing seed."""
    last_prune_step: int | None = None
    penalties: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class HeuristicController:
    """Chooses each env's action independently, from its signals and seed reports."""

    rules: ActionRules
    heuristic: HeuristicRules = field(default_factory=HeuristicRules)
    rotation: tuple[str, ...] | None = None
    name: str = "heuristic"
    _envs: dict[int, _EnvMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Use the topology's default rotation if none is given; validate the rotation."""
        if self.rotation is None:
            self.rotation = ROTATIONS[self.rules.topology]
        if not self.rotation:
            raise InvalidValueError("rotation", (), "must name a blueprint", "heuristic")
        for blueprint in self.rotation:
            if blueprint not in self.rules.blueprints:
                constraint = f"does not grow in a {self.rules.topology} host"
                raise InvalidValueError("rotation", str(blueprint), constraint, "heuristic")

    def begin_round(self, round_index: int) -> None:
        """Discard the state of the previous round's envs."""
        self._envs.clear()

    def choose(self, situation: Situation) -> Choice:
        """Choose each env's action independently."""
        return Choice(
            actions=tuple(
                None if env is None else self._for_env(env, situation.step)
                for env in situation.envs
            ),
            details=(None,) * len(situation.envs),
        )

    def _for_env(self, env: EnvEvidence, step: int) -> ActionSpec:
        memory = self._envs.setdefault(env.env_id, _EnvMemory())
        _decay(memory, self.heuristic)
        living = [
            report
            for report in env.reports
            if report.stage is not Stage.FOSSILIZED and report.stage not in COOLDOWN_STAGES
        ]
        memory.idle_steps = 0 if living else memory.idle_steps + 1
        # One seed at a time: with two, a change of the host's accuracy could not be traced to
        # either.
        request = self._for_seed(living[0]) if living else self._germination(env, memory, step)
        # Its thresholds know nothing of gates, ages and ramps; what is refused now is tried again
        # later.
        if not is_legal(request, env.reports, self.rules):
            return self._wait()
        if request.op is Op.PRUNE:
            memory.last_prune_step = step
            blueprint = living[0].blueprint
            memory.penalties[blueprint] = (
                memory.penalties.get(blueprint, 0) + self.heuristic.penalty
            )
        return request

    def _for_seed(self, seed: SeedReport) -> ActionSpec:
        match seed.stage:
            # Before blending, a seed cannot affect the host, so there is no reason to prune it.
            case Stage.GERMINATED | Stage.TRAINING:
                return ActionSpec(op=Op.ADVANCE, slot_id=seed.slot_id)
            case Stage.BLENDING if self._does_harm(seed):
                return ActionSpec(op=Op.PRUNE, slot_id=seed.slot_id)
            case Stage.BLENDING if seed.alpha.is_at_target and seed.alpha.target >= 1.0:
                return ActionSpec(op=Op.ADVANCE, slot_id=seed.slot_id)
            case Stage.HOLDING:
                return self._for_holding(seed)
            case _:
                return self._wait()

    def _for_holding(self, seed: SeedReport) -> ActionSpec:
        contribution, rules = seed.contribution_pp, self.heuristic
        if contribution is None:
            return self._wait()
        has_lost = (seed.improvement_pp or 0.0) < 0.0
        is_ransomware = contribution > rules.ransomware_contribution_pp and has_lost
        keeps = contribution > rules.fossilize_contribution_pp and not is_ransomware
        return ActionSpec(op=Op.FOSSILIZE if keeps else Op.PRUNE, slot_id=seed.slot_id)

    def _does_harm(self, seed: SeedReport) -> bool:
        """Return whether to prune a blending seed, by its own contribution only.

        The host's accuracy also varies for other reasons, so it is not used here.
        """
        contribution, rules = seed.contribution_pp, self.heuristic
        is_due = seed.steps_in_stage >= rules.prune_after_steps
        return is_due and contribution is not None and contribution < -rules.prune_harm_pp

    def _germination(self, env: EnvEvidence, memory: _EnvMemory, step: int) -> ActionSpec:
        last = memory.last_prune_step
        is_embargoed = last is not None and step - last < self.heuristic.embargo_steps
        is_due = self._is_stuck(env, step) or memory.idle_steps >= self.heuristic.patience_steps
        free = self._free_slot(env.reports)
        if is_embargoed or not is_due or free is None:
            return self._wait()
        blueprint = self._next_blueprint(memory)
        return ActionSpec(op=Op.GERMINATE, slot_id=free, blueprint=blueprint)

    def _is_stuck(self, env: EnvEvidence, step: int) -> bool:
        rules, signals = self.heuristic, env.signals
        is_ready = signals.is_stabilized and step >= rules.min_step
        return is_ready and signals.plateau_steps >= rules.plateau_steps

    def _free_slot(self, reports: tuple[SeedReport, ...]) -> str | None:
        """Return the first slot where germination is legal.

        Legality does not depend on the blueprint, so any one serves for the check; the rotation
        advances only when a seed is germinated.
        """
        assert self.rotation
        blueprint = self.rotation[0]
        requests = (
            ActionSpec(op=Op.GERMINATE, slot_id=slot_id, blueprint=blueprint)
            for slot_id in self.rules.slot_ids
        )
        legal = (request.slot_id for request in requests if is_legal(request, reports, self.rules))
        return next(legal, None)

    def _next_blueprint(self, memory: _EnvMemory) -> str:
        """Return the next blueprint of the rotation, skipping recently pruned ones.

        If all have a high penalty, rotate through them in order of penalty.
        """
        assert self.rotation is not None
        size = len(self.rotation)
        for offset in range(size):
            index = (memory.next_index + offset) % size
            if memory.penalties.get(self.rotation[index], 0.0) < self.heuristic.skip_penalty:
                memory.next_index = index + 1
                return self.rotation[index]
        ranked = sorted(self.rotation, key=lambda item: (memory.penalties[item], item))
        chosen = ranked[memory.next_index % size]
        memory.next_index += 1
        return chosen

    def _wait(self) -> ActionSpec:
        return ActionSpec(slot_id=self.rules.slot_ids[0])


def _decay(memory: _EnvMemory, rules: HeuristicRules) -> None:
    decayed = {item: value * rules.penalty_decay for item, value in memory.penalties.items()}
    memory.penalties = {
        item: value for item, value in decayed.items() if value >= rules.penalty_floor
    }
