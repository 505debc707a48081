"""Control with a small policy, and scripted evidence and outcomes of which a test says little."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from tests.builders.messages import env_evidence
from tests.simic.agent.rollouts import config_for
from tests.simic.rewards.builders import scheme
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import ActionOutcome, ActionSpec, Op, Topology
from esper.leyline.config import Job
from esper.leyline.legality import ActionRules
from esper.leyline.messages import (
    EnvEvidence,
    EnvFailure,
    EnvOutcome,
    LstmRow,
    Panic,
    PanicReason,
    Phase,
    RollbackReport,
    StepDecision,
    StepEvidence,
    StepOutcome,
    StepRecord,
    merge_decisions,
)
from esper.leyline.rewards import EpisodeEnd, LossRewardConfig, RewardFamily
from esper.leyline.stages import Stage
from esper.leyline.telemetry import SCHEMA_VERSION, Draft
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.telemetry.step_events import StepRules, step_events
from esper.simic.training.checkpoints.checkpointer import CheckpointHeader, LoadedRun
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.control import Control
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.baselines import WaitController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.features import FeatureExtractor, observation_size
from esper.tamiyo.masks import ActionMasker
from esper.tamiyo.network import PolicySpec

torch.set_num_threads(1)

NUM_ENVS = 3
NUM_STEPS = 6
RULES = ActionRules(slot_ids=SLOTS, topology=Topology.CNN)
STEP_RULES = StepRules(required_stable_steps=3, penalty=-10.0)
NAN_PANIC = Panic(
    reason=PanicReason.NAN, loss=float("nan"), threshold=None, consecutive_anomalies=0
)


def loss_scheme(episode_end: EpisodeEnd = EpisodeEnd.BOOTSTRAP) -> RewardScheme:
    """Return a scheme under which a step of an empty network earns five times its loss delta."""
    rules = scheme(family=RewardFamily.LOSS, loss=LossRewardConfig(loss_delta_std=1.0))
    return msgspec.structs.replace(rules, episode_end=episode_end)


def small_policy(
    num_envs: int = NUM_ENVS, num_steps: int = NUM_STEPS, **config
) -> PolicyController:
    obs_dim = observation_size(len(SLOTS))
    spec = PolicySpec(obs_dim=obs_dim, num_slots=len(SLOTS), feature_dim=24, hidden_dim=16)
    settings = {"num_epochs": 1, **config}
    agent = PPOAgent.build(
        config_for(spec, slot_ids=SLOTS, num_envs=num_envs, num_steps=num_steps, **settings),
        generator=torch.Generator().manual_seed(7),
    )
    return PolicyController(
        agent=agent,
        obs_normalizer=ObservationNormalizer(obs_dim),
        reward_normalizer=RewardNormalizer(),
        slot_ids=SLOTS,
        seed=11,
    )


def make_control(
    controller: Controller | None = None,
    *,
    num_envs: int = NUM_ENVS,
    num_steps: int = NUM_STEPS,
    death_penalty: float = 10.0,
    reward_scheme: RewardScheme | None = None,
) -> Control:
    control = Control(
        controller=controller or small_policy(num_envs, num_steps),
        scheme=reward_scheme or loss_scheme(),
        rules=RULES,
        extractor=FeatureExtractor(SLOTS, num_steps),
        masker=ActionMasker(RULES),
        num_envs=num_envs,
        num_steps=num_steps,
        death_penalty=death_penalty,
        success_accuracy_pct=80.0,
        updates_per_round=1,
        check_cancelled=lambda: None,
    )
    control.begin_round(0)
    return control


def wait_control(**settings) -> Control:
    return make_control(WaitController(RULES), **settings)


def env_outcome(evidence: EnvEvidence, action: ActionSpec | None = None, **changes) -> EnvOutcome:
    """Return an outcome in which the action took effect and the step changed nothing else."""
    action = action or ActionSpec(slot_id=SLOTS[0])
    facts = {
        "env_id": evidence.env_id,
        "outcome": ActionOutcome(action=action, effective_op=action.op, succeeded=True),
        "rollback": None,
        "action_effects": (),
        "tick_effects": (),
        "reports": evidence.reports,
        "num_auto_prunes": 0,
        "lstm_hidden": LstmRow(index=evidence.env_id),
        "slots": (),
    }
    return EnvOutcome(**{**facts, **changes})


def rolled_back(evidence: EnvEvidence, **changes) -> EnvOutcome:
    """Return the outcome of an env that panicked."""
    outcome = ActionOutcome(
        action=ActionSpec(slot_id=SLOTS[0]),
        effective_op=Op.WAIT,
        succeeded=False,
    )
    report = RollbackReport(
        panic=NAN_PANIC, pruned_slots=(), active_slot=None, active_stage=Stage.DORMANT
    )
    return env_outcome(evidence, **{"outcome": outcome, "rollback": report, **changes})


def failure(env_id: int, phase: Phase, step: int | None) -> EnvFailure:
    return EnvFailure(
        env_id=env_id, phase=phase, step=step, error_type="ValueError", message="a fault"
    )


@dataclass(eq=False)
class Play:
    """Takes control through a round of scripted steps and keeps what was said."""

    control: Control
    round_index: int = 0
    records: list[StepRecord] = field(default_factory=list)
    decisions: list[StepDecision] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    remembered: dict[int, int] = field(default_factory=dict)
    """Steps since an env's last rollback."""
    parts: Sequence[Sequence[int]] | None = None
    """The envs that are decided together, in this order; None for all at once."""

    def step(
        self,
        *,
        deltas: Mapping[int, float] | None = None,
        panics: Collection[int] = (),
        breaking_before: Collection[int] = (),
        breaking_in_apply: Collection[int] = (),
        evidence: Mapping[int, EnvEvidence] | None = None,
        outcomes: Mapping[int, EnvOutcome] | None = None,
    ) -> StepRecord:
        """Play one step; envs that a test does not mention wait, and earn their delta."""
        step, num_envs = len(self.records), self.control.num_envs
        self.gone |= set(breaking_before)
        phase = Phase.TRAIN
        shown = {
            env_id: (evidence or {}).get(env_id)
            or env_evidence(env_id, step, delta=(deltas or {}).get(env_id, 0.0))
            for env_id in range(num_envs)
            if env_id not in self.gone
        }
        seen = StepEvidence(
            round=self.round_index,
            step=step,
            env_ids=tuple(range(num_envs)),
            envs=tuple(shown.get(env_id) for env_id in range(num_envs)),
            failures=tuple(failure(env_id, phase, step) for env_id in sorted(breaking_before)),
        )
        decision = merge_decisions([self.control.decide(part) for part in self._parts_of(seen)])
        self.gone |= set(breaking_in_apply)
        done = {
            env_id: rolled_back(env) if env_id in panics else env_outcome(env)
            for env_id, env in shown.items()
            if env_id not in self.gone
        }
        done |= dict(outcomes or {})
        done = {env_id: self._with_memory(env) for env_id, env in done.items()}
        cut = [
            env_id
            for env_id, env in sorted(done.items())
            if decision.is_truncated and env.rollback is None
        ]
        outcome = StepOutcome(
            round=self.round_index,
            step=step,
            envs=tuple(done.get(env_id) for env_id in range(num_envs)),
            failures=tuple(
                failure(env_id, Phase.APPLY, step) for env_id in sorted(breaking_in_apply)
            ),
            truncated_bootstrap_targets=tuple((env_id, step) for env_id in cut),
            post_action_signals=tuple(shown[env_id].signals for env_id in cut),
            post_action_slot_reports=tuple(done[env_id].reports for env_id in cut),
            post_action_masks=((True,) * len(Op),) * len(cut),
        )
        record = self.control.record(seen, decision, outcome)
        self.records.append(record)
        self.decisions.append(decision)
        self.drafts += step_events(seen, decision, outcome, record, rules=STEP_RULES)
        return record

    def _parts_of(self, seen: StepEvidence) -> list[StepEvidence]:
        return [
            msgspec.structs.replace(
                seen,
                env_ids=tuple(part),
                envs=tuple(env if index in part else None for index, env in enumerate(seen.envs)),
            )
            for part in self.parts or [seen.env_ids]
        ]

    def _with_memory(self, outcome: EnvOutcome) -> EnvOutcome:
        """Let the env remember its steps as a real one does."""
        before, env_id = self.remembered.get(outcome.env_id, 0), outcome.env_id
        self.remembered[env_id] = 0 if outcome.rollback is not None else before + 1
        row = LstmRow(index=env_id, num_steps=self.remembered[env_id])
        return msgspec.structs.replace(outcome, lstm_hidden=row)

    def finish(self, **last_step) -> "Play":
        """Play the rest of the round."""
        while len(self.records) < self.control.num_steps - 1:
            self.step()
        if len(self.records) < self.control.num_steps:
            self.step(**last_step)
        return self


def loaded_run(job: Job, command: str, controller: dict[str, Any] | None = None) -> LoadedRun:
    """Return a checkpoint of a run's start, as `load_run` reads it."""
    header = CheckpointHeader(
        schema_version=SCHEMA_VERSION,
        run_id="a",
        command=command,
        job=job,
        state=RunState(),
        log_seq=-1,
        is_best=False,
        is_announced=False,
    )
    return LoadedRun(path=Path("c.pt"), header=header, controller=controller, num_bytes=1)
