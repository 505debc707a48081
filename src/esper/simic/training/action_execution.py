"""Executes decisions: decodes sampled indices into actions, applies them, and ends the step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from esper.leyline.actions import (
    BLUEPRINTS,
    HEADS,
    ActionOutcome,
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
)
from esper.leyline.effects import effect_of
from esper.leyline.legality import ActionRules
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvFailure,
    EnvOutcome,
    Panic,
    Phase,
    RollbackReport,
    StepDecision,
)
from esper.leyline.payloads import MorphologyCausalLog, Payload
from esper.leyline.reports import SeedReport
from esper.simic.control.handlers import HANDLERS
from esper.simic.seed_management import resolve_target_slot
from esper.simic.training.env_episode import EnvEpisode
from esper.simic.training.sabotage import is_victim, target_of
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.containment import Place, contained
from esper.tolaria.governor import preflight

__all__ = ["ActionWork", "apply_decision", "execute_actions", "parse_sampled_action"]


def parse_sampled_action(
    indices: Sequence[int], slot_ids: Sequence[str], added_blueprints: tuple[str, ...] = ()
) -> ActionSpec:
    """Decode one env's head indices, given in canonical head order."""
    blueprints = (*BLUEPRINTS, *added_blueprints)
    chosen = dict(zip(HEADS, indices, strict=True))
    return ActionSpec(
        op=Op(chosen[Head.OP]),
        slot_id=resolve_target_slot(chosen[Head.SLOT], slot_ids),
        blueprint=blueprints[chosen[Head.BLUEPRINT]],
        style=Style(chosen[Head.STYLE]),
        tempo=Tempo(chosen[Head.TEMPO]),
        alpha_target=AlphaTarget(chosen[Head.ALPHA_TARGET]),
        alpha_speed=AlphaSpeed(chosen[Head.ALPHA_SPEED]),
        alpha_curve=CurveChoice(chosen[Head.ALPHA_CURVE]),
    )


def execute_actions(
    envs: Sequence[EnvEpisode],
    decision: StepDecision,
    *,
    rules: ActionRules,
    masker: ActionMasker,
    failures: list[EnvFailure],
    beat: Callable[[], None],
) -> ActionExecutionResult:
    """Execute one decision per env of a lane, in env order, and end the step in each.

    An env that panicked is rolled back and its action is not executed. Rewards and the rollout
    buffer belong to control and are not accessed here.

    Args:
        envs: the lane's envs, in env order, each with the evidence of this step's validation.
        decision: the action of every env.
        rules: which actions are legal.
        masker: computes which ops would be legal after a step that cuts the episode off.
        failures: an env that raises is appended here and left out of the result; others continue.
        beat: called after each env.
    """
    result = ActionExecutionResult()
    place = Place(Phase.APPLY, decision.step)
    for env in envs:
        with contained(failures, env.env_idx, place):
            # If this raises, nothing of the env is in the result: no outcome, no target.
            outcome = apply_decision(env, decision, rules)
            if decision.is_truncated and outcome.rollback is None:
                _add_target(result, env, decision.step, outcome.reports, masker)
            result.outcomes.append(outcome)
        beat()
    return result


@dataclass(eq=False, kw_only=True, slots=True)
class ActionWork:
    """The part of the engine's EnvWork that is the same for every kind of env."""

    action_rules: ActionRules
    masker: ActionMasker
    sabotage_step: int | None = None
    """First step in which a useful seed of every second env is scrambled; None for no sabotage."""

    def sabotage(self, env: EnvEpisode, step: int) -> None:
        """Scramble the first useful seed of an env, once, if its time has come."""
        first = self.sabotage_step
        if first is None or step < first or env.is_sabotaged or not is_victim(env.env_idx):
            return
        slot_id = target_of(env.reports, self.action_rules)
        if slot_id is not None:
            env.scramble(slot_id)
            env.is_sabotaged = True

    def apply(
        self,
        envs: Sequence[EnvEpisode],
        decision: StepDecision,
        failures: list[EnvFailure],
        beat: Callable[[], None],
    ) -> ActionExecutionResult:
        """Execute the decisions of a lane's envs and end the step."""
        return execute_actions(
            envs,
            decision,
            rules=self.action_rules,
            masker=self.masker,
            failures=failures,
            beat=beat,
        )


def apply_decision(env: EnvEpisode, decision: StepDecision, rules: ActionRules) -> EnvOutcome:
    """Execute one env's decision, or roll the env back after a panic, and end the step."""
    # Control has computed it after the last step was applied, so it arrives one step late.
    _credit_last_step(env, decision.previous_rewards[env.env_idx])
    panic = env.seen.panic
    return _act(env, decision, rules) if panic is None else _roll_back(env, panic, decision)


def _add_target(
    result: ActionExecutionResult,
    env: EnvEpisode,
    step: int,
    reports: tuple[SeedReport, ...],
    masker: ActionMasker,
) -> None:
    """Add a bootstrap target for an env whose episode is truncated, with its next observation."""
    legal_ops = masker.legal_ops(reports)
    result.truncated_bootstrap_targets.append((env.env_idx, step))
    # The signals of the validation pass still hold: ending a step changes slots, not signals.
    result.post_action_signals.append(env.seen.signals)
    result.post_action_slot_reports.append(reports)
    result.post_action_masks.append(legal_ops)


def _act(env: EnvEpisode, decision: StepDecision, rules: ActionRules) -> EnvOutcome:
    action = decision.actions[env.env_idx]
    assert action is not None, f"env {env.env_idx} was given no action"
    log = _CausalChain(env.env_idx, decision, action)
    # The masks already exclude illegal ops; this catches a controller that ignores them.
    veto = preflight(action, env.seen.signals, env.seen.reports, rules)
    before = [*log.proposal(), *log.verdict(veto)]
    if veto is not None:
        outcome = ActionOutcome(
            action=action, effective_op=Op.WAIT, succeeded=False, veto_reason=veto
        )
        return _end_step(env, outcome, before)
    refusal = _carry_out(env, action)
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
    return _end_step(env, outcome, events)


def _carry_out(env: EnvEpisode, action: ActionSpec) -> str | None:
    with env.acting():
        refusal = HANDLERS[action.op](action, env.handler_context()).refusal
        if action.op is Op.FOSSILIZE and refusal is None:
            env.secure_fossil()
    # Numbers the seeds of an episode; a refused germination uses up no number.
    env.num_germinated += int(action.op is Op.GERMINATE and refusal is None)
    return refusal


def _roll_back(env: EnvEpisode, panic: Panic, decision: StepDecision) -> EnvOutcome:
    action = ActionSpec(slot_id=env.slot_ids[0])
    # Read before the rollback prunes the seed that they name.
    active_slot, active_stage = env.active_slot, env.seed_stage
    report = RollbackReport(
        panic=panic,
        pruned_slots=env.roll_back(panic),
        active_slot=active_slot,
        active_stage=active_stage,
    )
    log = _CausalChain(env.env_idx, decision, action)
    outcome = ActionOutcome(action=action, effective_op=Op.WAIT, succeeded=False)
    events = [*env.take_outbox(), *log.rollback(panic)]
    return _end_step(env, outcome, events, report)


def _end_step(
    env: EnvEpisode,
    outcome: ActionOutcome,
    events: Sequence[Payload],
    rollback: RollbackReport | None = None,
) -> EnvOutcome:
    # The step passes in every slot whatever was done: after an op, a veto or a rollback alike.
    env.tick()
    if rollback is None:
        row = env.lstm_hidden
        env.lstm_hidden = msgspec.structs.replace(row, num_steps=row.num_steps + 1)
    else:
        env.reset_lstm_hidden()
    return EnvOutcome(
        env_id=env.env_idx,
        outcome=outcome,
        rollback=rollback,
        action_effects=tuple(map(effect_of, events)),
        tick_effects=tuple(map(effect_of, env.take_outbox())),
        reports=env.reports,
        num_auto_prunes=0 if rollback is None else len(rollback.pruned_slots),
        lstm_hidden=env.lstm_hidden,
        slots=env.slot_activity(),
    )


def _credit_last_step(env: EnvEpisode, reward: float | None) -> None:
    if reward is not None and env.last_target is not None:
        env.epoch_rewards[env.last_target] += reward
    env.last_target = None


@dataclass(frozen=True, slots=True)
class _CausalChain:
    """The causal log entries of one action, sharing one id; WAIT is not logged."""

    env_id: int
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
        action = self.action
        detail = self.decision.details[self.env_id]
        place = f"r{self.decision.round}-s{self.decision.step}-e{self.env_id}"
        return MorphologyCausalLog(
            phase=phase,
            action_id=f"{place}-{action.slot_id}-{action.op.name}",
            op=action.op.name,
            slot_id=action.slot_id,
            blueprint=action.blueprint if action.op is Op.GERMINATE else None,
            observation_hash=None if detail is None else detail.observation_hash,
            approved=approved,
            reason=reason,
        )
