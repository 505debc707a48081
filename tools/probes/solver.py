"""The best policy and the best open-loop schedule of a probe, by exhaustive search.

The search plays the probe itself: envs, lifecycle and rewards are those of a run. It keeps every
hidden draw that agrees with what was observed so far (the belief), tries each action in each step,
and remembers beliefs that it has solved. An open-loop schedule is a policy that observes nothing.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final, TypeAlias

import msgspec

from esper.kasmina.seed import Measurements
from esper.leyline.actions import (
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    Op,
    Style,
    Tempo,
)
from esper.leyline.episodes import is_last_step
from esper.leyline.legality import is_legal
from esper.leyline.messages import EnvEvidence, StepDecision
from esper.leyline.probes import ProbeHostSpec
from esper.simic.probes.body import ProbeSlot
from esper.simic.probes.growth import Fate
from esper.simic.rewards.scheme import RewardScheme, scheme_of
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.assembly.worker_assembly import build_probe_work
from esper.simic.training.probe_env import ProbeEnv, ProbeWork
from esper.simic.training.reward_ledger import EpisodeLedger

__all__ = ["Solution", "fates_of", "solve"]

MAX_SEEDS: Final = 2
"""Seeds whose luck is enumerated; later ones count as duds.

No probe has time to learn about more, and a seed that is pruned before it shows anything is
exchangeable with the next one, so that nothing is lost.
"""

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """A policy that maximizes the discounted return, and what it earns."""

    mean_return: float
    """Expected task return, not discounted."""
    returns: Mapping[Fate, float]
    """The task return of each fate, all of them equally likely."""

    def return_of(self, fate: Fate) -> float:
        """Return what the policy earns in an env with this fate."""
        known = next(iter(self.returns))
        return self.returns[Fate(fate.kind, fate.duds[: len(known.duds)])]


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """An env with one of the possible fates, and the rewards it has had."""

    fate: Fate
    env: ProbeEnv
    ledger: EpisodeLedger

    def copied(self) -> "World":
        """Return a copy that can go another way."""
        return World(fate=self.fate, env=_copied(self.env), ledger=_copied_ledger(self.ledger))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a belief comes to under the best actions, by fate."""

    discounted: float
    """Sum over the fates."""
    returns: dict[Fate, float]


@dataclass(eq=False, kw_only=True)
class Solver:
    """Searches one probe."""

    work: ProbeWork
    scheme: RewardScheme
    is_open_loop: bool
    has_all_variants: bool
    _known: dict[Key, Outcome] = field(default_factory=dict)

    def run(self) -> Solution:
        """Return the best policy."""
        worlds = [self._world(fate) for fate in fates_of(self.work.spec)]
        found = self._solve(0, worlds)
        mean = sum(found.returns.values()) / len(found.returns)
        return Solution(mean_return=mean, returns=found.returns)

    def _world(self, fate: Fate) -> World:
        num_steps = self.work.config.max_epochs
        # Seeds beyond those whose luck is enumerated are duds.
        padded = Fate(fate.kind, fate.duds + (True,) * (num_steps - len(fate.duds)))
        ledger = EpisodeLedger(
            env_id=0, round_index=0, episode_id=0, num_steps=num_steps, scheme=self.scheme
        )
        return World(fate=fate, env=self.work.build_with(padded, 0, 0), ledger=ledger)

    def _solve(self, step: int, worlds: Sequence[World]) -> Outcome:
        """Return the best that a belief comes to from a step on."""
        if step == self.work.config.max_epochs:
            return Outcome(discounted=0.0, returns={world.fate: 0.0 for world in worlds})
        key = (step, *((world.fate, _signature(world.env)) for world in worlds))
        if key not in self._known:
            self._known[key] = self._solve_anew(step, worlds)
        return self._known[key]

    def _solve_anew(self, step: int, worlds: Sequence[World]) -> Outcome:
        cells: dict[object, list[tuple[World, EnvEvidence]]] = {}
        for world in worlds:
            now = world.copied()
            self.work.begin_train(now.env, step)
            self.work.finish_train(now.env)
            evidence = self.work.validate(now.env, step, _nothing)
            seen = None if self.is_open_loop else _observed(evidence)
            cells.setdefault(seen, []).append((now, evidence))
        best = [self._best_action(step, cell) for cell in cells.values()]
        returns = {fate: earned for outcome in best for fate, earned in outcome.returns.items()}
        return Outcome(discounted=sum(outcome.discounted for outcome in best), returns=returns)

    def _best_action(self, step: int, cell: Sequence[tuple[World, EnvEvidence]]) -> Outcome:
        rules = self.work.action_rules
        legal = [
            action
            for action in self._actions
            if any(is_legal(action, evidence.reports, rules) for _, evidence in cell)
        ]
        tried = (self._act(step, cell, action) for action in legal)
        # Of equal ones the first: WAIT comes before all others.
        return max(tried, key=lambda outcome: round(outcome.discounted, 9))

    def _act(
        self, step: int, cell: Sequence[tuple[World, EnvEvidence]], action: ActionSpec
    ) -> Outcome:
        decision = StepDecision(
            round=0,
            step=step,
            is_last_step=is_last_step(step, self.work.config.max_epochs),
            actions=(action,),
            details=(None,),
            previous_rewards=(None,),
        )
        worlds, earned = [], []
        for world, evidence in cell:
            after = world.copied()
            (outcome,) = self.work.apply([after.env], decision, [], _nothing).outcomes
            earned.append(after.ledger.reward(evidence, outcome).total)
            worlds.append(after)
        rest = self._solve(step + 1, worlds)
        return Outcome(
            discounted=sum(earned) + self.scheme.gamma * rest.discounted,
            returns={
                world.fate: reward + rest.returns[world.fate]
                for world, reward in zip(worlds, earned, strict=True)
            },
        )

    @cached_property
    def _actions(self) -> tuple[ActionSpec, ...]:
        """Return what is tried in each step; illegal ones are left out there.

        Without all variants, seeds are planted with the fastest ramp to full alpha and pruned at
        once: slower or lower ramps are never better, which a test checks.
        """
        first = self.work.config.slots[0]
        return (ActionSpec(slot_id=first), *self._planting(), *self._ending())

    def _planting(self) -> Iterator[ActionSpec]:
        suited = self.work.spec.blueprints
        blueprints = (*suited, Blueprint.NORM) if suited else (Blueprint.NORM,)
        few = ((Style.LINEAR_ADD, Tempo.FAST, AlphaTarget.FULL),)
        ways = product(Style, Tempo, AlphaTarget) if self.has_all_variants else few
        for slot_id, blueprint, way in product(self.work.config.slots, blueprints, tuple(ways)):
            style, tempo, target = way
            yield ActionSpec(
                op=Op.GERMINATE,
                slot_id=slot_id,
                blueprint=blueprint,
                style=style,
                tempo=tempo,
                alpha_target=target,
            )

    def _ending(self) -> Iterator[ActionSpec]:
        for slot_id in self.work.config.slots:
            yield ActionSpec(op=Op.FOSSILIZE, slot_id=slot_id)
            for speed in AlphaSpeed if self.has_all_variants else (AlphaSpeed.INSTANT,):
                yield ActionSpec(op=Op.PRUNE, slot_id=slot_id, alpha_speed=speed)


def solve(
    setup: RunSetup, *, is_open_loop: bool = False, has_all_variants: bool = False
) -> Solution:
    """Return the best policy of a probe, or its best open-loop schedule.

    Args:
        setup: the run; its rewards and its discount are those that are maximized.
        is_open_loop: choose a schedule that depends on nothing but the step.
        has_all_variants: try every style, tempo, alpha target and speed, which takes far longer.
    """
    assert setup.worker.probe is not None, f"{setup.task.name} is no probe"
    return Solver(
        work=build_probe_work(setup.worker, setup.worker.probe),
        scheme=scheme_of(setup.job.training, setup.task),
        is_open_loop=is_open_loop,
        has_all_variants=has_all_variants,
    ).run()


def fates_of(spec: ProbeHostSpec) -> tuple[Fate, ...]:
    """Return all fates, each as likely as any other."""
    assert spec.dud_share in (0.0, 0.5), "fates are equally likely"
    luck = (False, True) if spec.dud_share else (False,)
    return tuple(
        Fate(kind, duds)
        for kind in range(len(spec.gain_pp))
        for duds in product(luck, repeat=MAX_SEEDS)
    )


def _nothing() -> None: ...


def _observed(evidence: EnvEvidence) -> object:
    """Return what tells two envs apart for a policy."""
    return evidence.signals.val_accuracy_pct, evidence.reports


def _signature(env: ProbeEnv) -> Key:
    """Return everything that the future of an env depends on, its fate aside."""
    return (env.model.num_seeds, *(_slot_signature(slot) for slot in env.model.slots.values()))


def _slot_signature(slot: ProbeSlot) -> Key:
    state = slot.state
    if state is None:
        return ()
    measured = state.measured
    plain = msgspec.structs.replace(
        state, seed_id="", blueprint=Blueprint.NOOP, germinated_at_step=0, measured=Measurements()
    )
    is_measured = (measured.gradient is None, measured.contribution_pp is None)
    return plain, is_measured, slot.worth


def _copied(env: ProbeEnv) -> ProbeEnv:
    """Copy an env; its states are immutable, so that references to them may be shared."""
    new = copy.copy(env)
    new.outbox = []
    new.signal_tracker = copy.copy(env.signal_tracker)
    new.model = copy.copy(env.model)
    new.model.slots = {slot_id: copy.copy(slot) for slot_id, slot in env.model.slots.items()}
    for slot in new.model.slots.values():
        slot.emit = new.outbox.append
    new.epoch_counts = dict(env.epoch_counts)
    new.epoch_successes = dict(env.epoch_successes)
    new.epoch_rewards = dict(env.epoch_rewards)
    return new


def _copied_ledger(ledger: EpisodeLedger) -> EpisodeLedger:
    new = copy.copy(ledger)
    new.rewards = []
    return new
