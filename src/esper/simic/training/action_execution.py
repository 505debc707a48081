"""Decisions carried out: sampled indices become actions, actions change envs, the step passes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from esper.leyline.actions import (
    HEADS,
    ActionOutcome,
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
)
from esper.leyline.legality import ActionRules
from esper.leyline.messages import EnvOutcome, Panic, RollbackReport, StepDecision
from esper.leyline.payloads import MorphologyCausalLog, Payload
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.simic.control.handlers import HandlerContext, carry_out
from esper.simic.seed_management import resolve_target_slot
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.governor import preflight

__all__ = ["ActionExecutionResult", "EnvTurn", "execute_actions", "parse_sampled_action"]


def parse_sampled_action(indices: Sequence[int], slot_ids: Sequence[str]) -> ActionSpec:
    """Decode one env's head indices, in canonical order of heads."""
    chosen = dict(zip(HEADS, indices, strict=True))
    return ActionSpec(
        op=Op(chosen[Head.OP]),
        slot_id=resolve_target_slot(chosen[Head.SLOT], slot_ids),
        blueprint=Blueprint(chosen[Head.BLUEPRINT]),
        style=Style(chosen[Head.STYLE]),
        tempo=Tempo(chosen[Head.TEMPO]),
        alpha_target=AlphaTarget(chosen[Head.ALPHA_TARGET]),
        alpha_speed=AlphaSpeed(chosen[Head.ALPHA_SPEED]),
        alpha_curve=CurveChoice(chosen[Head.ALPHA_CURVE]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvTurn:
    """An env whose turn it is, with what was seen of it before the decision."""

    env: ParallelEnvState
    signals: TrainingSignals
    reports: tuple[SeedReport, ...]
    panic: Panic | None


@dataclass(eq=False, slots=True)
class ActionExecutionResult:
    """What became of the decisions of one lane's envs."""

    outcomes: list[EnvOutcome] = field(default_factory=list)
    truncated_bootstrap_targets: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of env and step whose return goes on beyond the episode."""
    post_action_signals: list[TrainingSignals] = field(default_factory=list)
    post_action_slot_reports: list[tuple[SeedReport, ...]] = field(default_factory=list)
    post_action_masks: ActionMasks | None = None
    """Masks of what the next step would start from; None when no episode ends here."""


def execute_actions(
    turns: Sequence[EnvTurn],
    decision: StepDecision,
    *,
    rules: ActionRules,
    masker: ActionMasker,
    is_last_step: bool,
) -> ActionExecutionResult:
    """Carry out one decision per env, in order, and let the step pass in each.

    An env that panicked is rolled back; its action never runs. Rewards and the rollout buffer
    belong to control, so nothing here looks at them.
    """
    result = ActionExecutionResult()
    for turn in turns:
        env = turn.env
        if turn.panic is None:
            outcome = _act(turn, decision, rules)
        else:
            outcome = _roll_back(turn, turn.panic, decision)
        result.outcomes.append(outcome)
        result.post_action_signals.append(outcome.signals)
        result.post_action_slot_reports.append(outcome.reports)
        if is_last_step and turn.panic is None:
            result.truncated_bootstrap_targets.append((env.env_idx, decision.step))
    if is_last_step:
        result.post_action_masks = masker.masks(result.post_action_slot_reports)
    return result


def _act(turn: EnvTurn, decision: StepDecision, rules: ActionRules) -> EnvOutcome:
    env = turn.env
    action = decision.actions[env.env_idx]
    assert action is not None, f"env {env.env_idx} was given no action"
    _credit_last_step(env, decision.previous_rewards[env.env_idx])
    log = _CausalChain(turn, decision, action)
    veto = preflight(action, turn.signals, turn.reports, rules)
    before = [*log.proposal(), *log.verdict(veto)]
    if veto is not None:
        outcome = ActionOutcome(
            action=action, effective_op=Op.WAIT, succeeded=False, veto_reason=veto
        )
        return _end_step(turn, outcome, before)
    refusal = _carry_out(turn, action)
    env.epoch_counts[action.slot_id] += int(action.op is not Op.WAIT)
    env.epoch_successes[action.slot_id] += int(action.op is not Op.WAIT and refusal is None)
    env.last_target = None if action.op is Op.WAIT else action.slot_id
    outcome = ActionOutcome(
        action=action,
        effective_op=action.op,
        succeeded=refusal is None,
        failure_reason=refusal,
    )
    events = [*before, *log.mutation(), *env.take_outbox(), *log.completion(refusal)]
    return _end_step(turn, outcome, events)


def _carry_out(turn: EnvTurn, action: ActionSpec) -> str | None:
    env = turn.env
    context = HandlerContext(
        model=env.model,
        seed_id=f"ep{env.episode_id}_env{env.env_idx}_seed_{env.num_germinated}",
        generator=env.seed_generator,
        accuracy_pct=turn.signals.val_accuracy_pct,
        step=turn.signals.step,
    )
    with env.fence.entered(is_training=True):
        refusal = carry_out(action, context).refusal
        if action.op is Op.FOSSILIZE and refusal is None:
            # A rollback must never meet a fossil that it has no weights for.
            env.governor.take_snapshot()
    env.num_germinated += int(action.op is Op.GERMINATE and refusal is None)
    return refusal


def _roll_back(turn: EnvTurn, panic: Panic, decision: StepDecision) -> EnvOutcome:
    env = turn.env
    action = ActionSpec(slot_id=env.model.slot_config.slot_ids[0])
    _credit_last_step(env, decision.previous_rewards[env.env_idx])
    with env.fence.entered(is_training=True):
        report = env.governor.roll_back(panic)
    # The moments belong to weights that are gone and would drive the host off again.
    env.host_optimizer.state.clear()
    env.seed_optimizers.forget_moments()
    log = _CausalChain(turn, decision, action)
    outcome = ActionOutcome(
        action=action, effective_op=Op.WAIT, succeeded=False, was_rolled_back=True
    )
    events = [*env.take_outbox(), *log.rollback(panic)]
    return _end_step(turn, outcome, events, report)


def _end_step(
    turn: EnvTurn,
    outcome: ActionOutcome,
    events: Sequence[Payload],
    rollback: RollbackReport | None = None,
) -> EnvOutcome:
    env = turn.env
    env.model.tick()
    env.seed_optimizers.follow(env.model)
    return EnvOutcome(
        env_id=env.env_idx,
        outcome=outcome,
        rollback=rollback,
        action_events=tuple(events),
        tick_events=env.take_outbox(),
        reports=env.reports,
        signals=turn.signals,
        num_auto_prunes=0 if rollback is None else len(rollback.pruned_slots),
    )


def _credit_last_step(env: ParallelEnvState, reward: float | None) -> None:
    if reward is not None and env.last_target is not None:
        env.epoch_rewards[env.last_target] += reward
    env.last_target = None


@dataclass(frozen=True, slots=True)
class _CausalChain:
    """The links from a proposal to what it did, all under one id; waiting leaves no trace."""

    turn: EnvTurn
    decision: StepDecision
    action: ActionSpec

    def proposal(self) -> Iterator[MorphologyCausalLog]:
        yield from self._links("proposal")

    def verdict(self, veto: str | None) -> Iterator[MorphologyCausalLog]:
        yield from self._links("verdict", approved=veto is None, reason=veto)

    def mutation(self) -> Iterator[MorphologyCausalLog]:
        yield from self._links("mutation")

    def completion(self, refusal: str | None) -> Iterator[MorphologyCausalLog]:
        yield from self._links("dispatch", reason=refusal)
        if refusal is None:
            is_fossil = self.action.op is Op.FOSSILIZE
            yield from self._links("fossilization" if is_fossil else "commit")

    def rollback(self, panic: Panic) -> Iterator[MorphologyCausalLog]:
        for phase in ("rollback", "cooldown", "audit"):
            yield self._link(phase, reason=panic.reason.value)

    def _links(
        self, phase: str, *, approved: bool | None = None, reason: str | None = None
    ) -> Iterator[MorphologyCausalLog]:
        if self.action.op is not Op.WAIT:
            yield self._link(phase, approved=approved, reason=reason)

    def _link(
        self, phase: str, *, approved: bool | None = None, reason: str | None = None
    ) -> MorphologyCausalLog:
        env, action = self.turn.env, self.action
        detail = self.decision.details[env.env_idx]
        place = f"r{self.decision.round}-s{self.decision.step}-e{env.env_idx}"
        return MorphologyCausalLog(
            phase=phase,
            action_id=f"{place}-{action.slot_id}-{action.op.name}",
            op=action.op.name,
            slot_id=action.slot_id,
            blueprint=action.blueprint.id if action.op is Op.GERMINATE else None,
            observation_hash=None if detail is None else detail.observation_hash,
            approved=approved,
            reason=reason,
        )
