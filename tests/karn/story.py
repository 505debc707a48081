"""A synthetic run as events: hosts that learn, seeds that grow, a policy that gets better at it.

Written out of real payload structs and passed through the wire, so that the view is tested on what
a log can really hold.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from esper.leyline import payloads
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Head, Op, Style, Topology
from esper.leyline.payloads import Payload
from esper.leyline.rewards import RewardComponents
from esper.leyline.telemetry import (
    RUN_SCOPE,
    SCHEMA_VERSION,
    Draft,
    Event,
    EventScope,
    Severity,
    build_event,
    decode_event,
    encode_event,
)

SLOTS = ("r0c0", "r0c1", "r0c2")
PATH = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")
DWELL = {"GERMINATED": 1, "TRAINING": 4, "BLENDING": 5, "HOLDING": 3}
BLUEPRINTS = tuple(map(str, BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]))
RUN_ID = "5eed0001"
STARTED_TS = 1_790_000_000.0


class Wire:
    """Numbers drafts as the hub does, and passes every event through the wire."""

    def __init__(self, started_ts: float = STARTED_TS, seconds_per_event: float = 0.01) -> None:
        self._seqs: dict[bool, Iterator[int]] = {False: itertools.count(), True: itertools.count()}
        self.ts = started_ts
        self.seconds_per_event = seconds_per_event

    def event(
        self,
        payload: Payload,
        scope: EventScope = RUN_SCOPE,
        severity: Severity | None = None,
        *,
        is_operational: bool = False,
    ) -> Event:
        """Return the event that a reader of the log gets."""
        self.ts += self.seconds_per_event
        seq = next(self._seqs[is_operational])
        draft = Draft(payload, scope, severity)
        return decode_event(
            encode_event(build_event(draft, seq=seq, ts=self.ts, run_id=RUN_ID, group="default"))
        )


@dataclass(eq=False)
class Seed:
    """A seed as the story knows it."""

    slot_id: str
    seed_id: str
    blueprint: str
    worth_pp: float
    stage: str = "GERMINATED"
    steps_in_stage: int = 0
    age: int = 0
    alpha: float = 0.0

    @property
    def is_active(self) -> bool:
        return self.stage not in ("GERMINATED", "PRUNED")


@dataclass(eq=False)
class Env:
    """An env as the story knows it."""

    env_id: int
    skill: float
    seeds: dict[str, Seed] = field(default_factory=dict)
    total_reward: float = 0.0
    best: float = 0.0
    accuracy: float = 0.0
    germinated: int = 0
    pruned: int = 0
    fossilized: int = 0
    rollbacks: int = 0


@dataclass(frozen=True, kw_only=True)
class Story:
    """The shape of the synthetic run; equal shapes give equal events."""

    num_rounds: int = 6
    num_envs: int = 4
    num_steps: int = 20
    seed: int = 11
    started_ts: float = STARTED_TS
    seconds_per_event: float = 0.01
    has_trouble: bool = True
    """One rollback, one failed env, an entropy alarm and a hostile text."""
    is_finished: bool = True
    controller: str = "ppo"

    def events(self) -> Iterator[Event]:
        """Yield the events as a reader of the log gets them."""
        wire = Wire(self.started_ts, self.seconds_per_event)
        for draft in StoryWriter(self).drafts():
            yield wire.event(draft.payload, draft.scope, draft.severity)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of `events.jsonl`, without newlines."""
        return (encode_event(event) for event in self.events())


class StoryWriter:
    """Yields the drafts of a synthetic run."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.random = Random(story.seed)
        self.best_round = 0.0
        self.rolling: list[float] = []
        self.tally: dict[str, list[int]] = {}

    def drafts(self) -> Iterator[Draft]:
        yield Draft(started(self.story))
        yield Draft(checkpoint(0))
        for index in range(self.story.num_rounds):
            yield from self.round(index)
        if self.story.is_finished:
            yield Draft(
                payloads.RunFinished(
                    status="completed",
                    reason=None,
                    rounds_completed=self.story.num_rounds,
                    episodes_completed=self.story.num_rounds * self.story.num_envs,
                    best_accuracy_pct=self.best_round,
                    final_accuracy_pct=self.rolling[-1],
                    duration_s=123.4,
                )
            )

    def round(self, index: int) -> Iterator[Draft]:
        progress = index / max(self.story.num_rounds - 1, 1)
        envs = [
            Env(env_id, skill=0.55 + 0.35 * progress + self.random.gauss(0, 0.05))
            for env_id in range(self.story.num_envs)
        ]
        counts, successes = dict.fromkeys(Op.__members__, 0), dict.fromkeys(Op.__members__, 0)
        components: list[RewardComponents] = []
        failed: set[int] = set()
        for step in range(self.story.num_steps):
            for env in (env for env in envs if env.env_id not in failed):
                scope = EventScope(
                    index, step, env.env_id, index * self.story.num_envs + env.env_id
                )
                if self._breaks(index, step, env):
                    failed.add(env.env_id)
                    yield Draft(failure(), scope)
                    yield Draft(outcome(env, step, "failed"), scope)
                    continue
                for draft in self.step(env, scope):
                    if isinstance(draft.payload, payloads.LastAction):
                        counts[draft.payload.op] += 1
                        successes[draft.payload.op] += draft.payload.succeeded
                        components.append(draft.payload.reward_components)
                    yield draft
                if step == self.story.num_steps - 1:
                    yield from (Draft(item, scope) for item in self.ending(env, step + 1))
            yield Draft(profile("train", "validate", "decide", "apply"), EventScope(index, step))
        yield from self.tail(index, envs, failed, counts, successes, components)

    def _breaks(self, index: int, step: int, env: Env) -> bool:
        is_planned = self.story.has_trouble and index == 1 and env.env_id == 1
        return is_planned and step == self.story.num_steps // 2

    def step(self, env: Env, scope: EventScope) -> Iterator[Draft]:
        assert scope.step is not None
        step = scope.step
        for seed in env.seeds.values():
            seed.age += 1
            seed.steps_in_stage += 1
            if seed.stage == "BLENDING":
                seed.alpha = min(1.0, seed.steps_in_stage / DWELL["BLENDING"])
        grown = sum(seed.worth_pp * seed.alpha for seed in env.seeds.values() if seed.is_active)
        base = 60.0 * (1 - math.exp(-(step + 1) / 6)) + 20.0
        is_hit = self.story.has_trouble and scope.round == 2 and env.env_id == 2 and step == 9
        env.accuracy = min(99.0, max(1.0, base + grown + self.random.gauss(0, 0.8)))
        if is_hit:
            env.accuracy = 11.0
        env.best = max(env.best, env.accuracy)
        yield Draft(self.epoch(env, step), scope)
        active = [seed for seed in env.seeds.values() if seed.is_active]
        if active:
            yield Draft(self.matrix(env, active), scope)
        if is_hit:
            env.rollbacks += 1
            yield Draft(rollback(step), scope)
        op, target, changes = self.decide(env, step)
        yield from (Draft(item, scope) for item in changes)
        yield Draft(self.action(env, op, target), scope)

    def decide(self, env: Env, step: int) -> tuple[str, Seed | None, list[Payload]]:
        if self.random.random() < 0.25:
            return "WAIT", None, []
        for seed in env.seeds.values():
            if seed.stage == "FOSSILIZED" or seed.steps_in_stage < DWELL[seed.stage]:
                continue
            if seed.stage == "HOLDING" and seed.worth_pp < 0.5:
                return "PRUNE", seed, list(self.prune(env, seed))
            op = "FOSSILIZE" if seed.stage == "HOLDING" else "ADVANCE"
            return op, seed, list(self.advance(env, seed))
        free = [slot for slot in SLOTS if slot not in env.seeds]
        if free and step > 1 and self.random.random() < env.skill * 0.5:
            seed = Seed(
                free[0],
                f"e{env.env_id}-{free[0]}-{step}",
                self.random.choice(BLUEPRINTS),
                worth_pp=self.random.gauss(6 * env.skill, 4),
            )
            env.seeds[seed.slot_id] = seed
            env.germinated += 1
            return "GERMINATE", seed, [germinated(seed, self.random)]
        return "WAIT", None, []

    def advance(self, env: Env, seed: Seed) -> Iterator[Payload]:
        target = PATH[PATH.index(seed.stage) + 1]
        yield gate(seed, target)
        yield stage_change(seed, target)
        seed.stage, seed.steps_in_stage = target, 0
        if target == "FOSSILIZED":
            env.fossilized += 1
            yield payloads.SeedFossilized(
                slot_id=seed.slot_id,
                seed_id=seed.seed_id,
                blueprint=seed.blueprint,
                num_params=640,
                age_steps=seed.age,
                contribution_pp=seed.worth_pp,
                improvement_pp=seed.worth_pp + 1,
                blending_delta_pp=None,
            )
        self._count(seed, 1 if target == "FOSSILIZED" else None)

    def prune(self, env: Env, seed: Seed) -> Iterator[Payload]:
        yield stage_change(seed, "PRUNED")
        yield payloads.SeedPruned(
            slot_id=seed.slot_id,
            seed_id=seed.seed_id,
            blueprint=seed.blueprint,
            reason="worth too little",
            initiator="policy",
            age_steps=seed.age,
            contribution_pp=seed.worth_pp,
            improvement_pp=None,
            blending_delta_pp=None,
        )
        del env.seeds[seed.slot_id]
        env.pruned += 1
        self._count(seed, 2)

    def _count(self, seed: Seed, index: int | None) -> None:
        row = self.tally.setdefault(seed.blueprint, [0, 0, 0])
        row[0] += index is None and seed.stage == "TRAINING"
        if index is not None:
            row[index] += 1

    def epoch(self, env: Env, step: int) -> Payload:
        loss = 2.4 * math.exp(-env.accuracy / 40)
        return payloads.EpochCompleted(
            train_loss=loss * 0.95,
            train_accuracy_pct=min(env.accuracy + 1.5, 100.0),
            val_loss=loss,
            val_accuracy_pct=env.accuracy,
            host_gradient_norm=1.1 if step % 2 == 0 else None,
            network_gradient_norm=None,
            seeds=tuple(snapshot(seed) for seed in env.seeds.values()),
        )

    def matrix(self, env: Env, active: list[Seed]) -> Payload:
        total = sum(seed.worth_pp * seed.alpha for seed in active)
        coalitions = [
            payloads.CoalitionResult(
                seeds_on=tuple(seed.slot_id for seed in chosen),
                accuracy_pct=env.accuracy
                - total
                + sum(seed.worth_pp * seed.alpha for seed in chosen),
                loss=None,
            )
            for size in range(len(active) + 1)
            for chosen in itertools.combinations(active, size)
        ]
        return payloads.CounterfactualMatrixComputed(
            strategy="full_factorial",
            slot_ids=tuple(seed.slot_id for seed in active),
            coalitions=tuple(coalitions),
            committed_accuracy_pct=env.accuracy - total,
        )

    def action(self, env: Env, op: str, target: Seed | None) -> Payload:
        terms = RewardComponents(
            attribution=0.15 * sum(seed.worth_pp * seed.alpha for seed in env.seeds.values()),
            pbrs=self.random.gauss(0.1, 0.05),
            rent=-0.05 * len(env.seeds),
            alpha_shock=-0.02 * (op == "ADVANCE"),
            action_shaping=-0.15 if op == "GERMINATE" else 0.0,
            fossilize_bonus=0.5 if op == "FOSSILIZE" else 0.0,
        )
        env.total_reward += terms.total()
        probability = 0.4 + 0.5 * self.random.random()
        head = payloads.HeadChoice(choice=op, confidence=probability, entropy=0.6, num_valid=4)
        return payloads.LastAction(
            op=op,
            effective_op=op,
            slot_id=target.slot_id if target else None,
            blueprint=target.blueprint if target and op == "GERMINATE" else None,
            style=None,
            tempo=None,
            alpha_target=None,
            alpha_speed=None,
            alpha_curve=None,
            succeeded=self.random.random() > 0.05,
            is_forced=False,
            veto_reason=None,
            failure_reason=None,
            value_estimate=1.0,
            op_probabilities={op: probability},
            heads={Head.OP.value: head},
            reward=terms.total(),
            reward_components=terms,
        )

    def ending(self, env: Env, num_steps: int) -> Iterator[Payload]:
        if env.seeds:
            yield payloads.ShapleyComputed(
                is_exact=True,
                values=tuple(
                    payloads.ShapleyValue(
                        slot_id=seed.slot_id,
                        mean_pp=seed.worth_pp * seed.alpha,
                        std_pp=0.0,
                        num_samples=8,
                    )
                    for seed in env.seeds.values()
                ),
            )
        yield outcome(env, num_steps, "success" if env.accuracy > 80 else "timeout")

    def tail(
        self,
        index: int,
        envs: list[Env],
        failed: set[int],
        counts: dict[str, int],
        successes: dict[str, int],
        components: list[RewardComponents],
    ) -> Iterator[Draft]:
        scope = EventScope(index)
        progress = index / max(self.story.num_rounds - 1, 1)
        accuracies = tuple(None if env.env_id in failed else env.accuracy for env in envs)
        measured = [value for value in accuracies if value is not None]
        mean = sum(measured) / len(measured)
        self.best_round = max(self.best_round, mean)
        self.rolling.append(mean)
        rewards = tuple(env.total_reward for env in envs)
        if self.story.controller == "ppo":
            yield Draft(ppo_update(self.random, progress), scope)
        if self.story.has_trouble and index == 3:
            yield Draft(entropy_alarm(), scope)
        yield Draft(
            payloads.BatchStats(
                seeds_germinated=sum(env.germinated for env in envs),
                seeds_fossilized=sum(env.fossilized for env in envs),
                seeds_pruned=sum(env.pruned for env in envs),
                rollback_attempts=sum(env.rollbacks for env in envs),
                unattributed_penalties=0,
                update_performed=self.story.controller == "ppo",
                skip_reason=None,
            ),
            scope,
        )
        yield Draft(
            payloads.BatchEpochCompleted(
                episodes_completed=(index + 1) * self.story.num_envs,
                mean_accuracy_pct=mean,
                rolling_accuracy_pct=sum(self.rolling[-10:]) / len(self.rolling[-10:]),
                mean_reward=sum(rewards) / len(rewards),
                mean_task_return=sum(rewards) / len(rewards) - 0.5,
                env_accuracies_pct=accuracies,
                env_rewards=rewards,
            ),
            scope,
        )
        yield Draft(payloads.ActionDistribution(counts=counts, successes=successes), scope)
        yield Draft(
            payloads.RewardSummary(
                mean_components=mean_terms(components),
                mean_reward=sum(item.total() for item in components) / len(components),
                hindsight_credit=0.0,
                reward_scale=1.0,
            ),
            scope,
        )
        yield Draft(
            payloads.Throughput(
                env_steps=self.story.num_envs * self.story.num_steps,
                train_samples=10_000,
                val_samples=4_000,
                env_steps_per_s=41.5,
                feeder_wait_s=0.2,
                duration_s=12.5,
            ),
            scope,
        )
        yield Draft(self.scoreboard(), scope)
        yield Draft(profile("update"), scope)
        yield Draft(checkpoint(index + 1), scope)

    def scoreboard(self) -> Payload:
        return payloads.ScoreboardUpdated(
            blueprints=tuple(
                payloads.BlueprintScore(
                    blueprint=name,
                    num_germinated=row[0],
                    num_fossilized=row[1],
                    num_pruned=row[2],
                    mean_contribution_pp=2.5 if row[1] else None,
                    mean_improvement_pp=None,
                    mean_age_steps=9.0,
                )
                for name, row in sorted(self.tally.items())
            ),
            params_added=12_800,
            compute_cost=1.4,
        )


# --- Payloads ------------------------------------------------------------------------------------


def started(story: Story) -> payloads.TrainingStarted:
    return payloads.TrainingStarted(
        esper_version="0.2.0",
        schema_version=SCHEMA_VERSION,
        controller=story.controller,
        task="digits",
        preset=None,
        data_source="package",
        topology="cnn",
        host_params=4_874,
        slot_ids=SLOTS,
        num_rounds=story.num_rounds,
        num_envs=story.num_envs,
        num_steps=story.num_steps,
        seed=story.seed,
        reward_family="contribution",
        reward_mode="shaped",
        telemetry_level="normal",
        policy_params=2_345_678 if story.controller == "ppo" else None,
        policy_device="cpu",
        env_devices=("cpu",),
        num_lanes=2,
        amp_dtype=None,
        compile_mode="off",
        torch_version="2.13.0",
        resumed_from_round=None,
    )


def checkpoint(rounds_completed: int) -> Payload:
    return payloads.CheckpointSaved(
        rounds_completed=rounds_completed,
        log_seq=0,
        is_best=False,
        path="checkpoints/x.pt",
        num_bytes=1000,
    )


def snapshot(seed: Seed) -> payloads.SeedSnapshot:
    is_measured = seed.is_active
    return payloads.SeedSnapshot(
        slot_id=seed.slot_id,
        stage=seed.stage,
        blueprint=seed.blueprint,
        alpha=seed.alpha,
        steps_in_stage=seed.steps_in_stage,
        age_steps=seed.age,
        contribution_pp=seed.worth_pp * seed.alpha if is_measured else None,
        contribution_velocity_pp=None,
        stage_improvement_pp=None,
        interaction_sum_pp=None,
        boost_received_pp=None,
        upstream_alpha_sum=0.0,
        downstream_alpha_sum=0.0,
        gradient_norm=0.8 if is_measured else None,
        gradient_ratio=1.0 if is_measured else None,
        gradient_health=0.95 if is_measured else None,
        has_vanishing_gradient=False if is_measured else None,
        has_exploding_gradient=False if is_measured else None,
    )


def germinated(seed: Seed, random: Random) -> Payload:
    return payloads.SeedGerminated(
        slot_id=seed.slot_id,
        seed_id=seed.seed_id,
        blueprint=seed.blueprint,
        num_params=640,
        style=random.choice(list(Style)).name,
        tempo_steps=5,
        alpha_target=1.0,
    )


def gate(seed: Seed, target: str) -> Payload:
    return payloads.SeedGateEvaluated(
        slot_id=seed.slot_id,
        seed_id=seed.seed_id,
        gate={"TRAINING": "G1", "BLENDING": "G2", "HOLDING": "G3", "FOSSILIZED": "G5"}[target],
        target_stage=target,
        passed=True,
        score=1.0,
        checks_passed=("dwell",),
        checks_failed=(),
    )


def stage_change(seed: Seed, target: str) -> Payload:
    return payloads.SeedStageChanged(
        slot_id=seed.slot_id,
        seed_id=seed.seed_id,
        from_stage=seed.stage,
        to_stage=target,
        alpha=seed.alpha,
        steps_in_from_stage=seed.steps_in_stage,
        accuracy_delta_pp=None,
    )


def failure() -> payloads.EnvFailed:
    return payloads.EnvFailed(
        phase="train",
        batch=3,
        slot_id=None,
        layer="stem.conv",
        error_type="ValueError",
        message="<script>document.title='owned'</script> is no tensor",
    )


def rollback(step: int) -> payloads.GovernorRollback:
    return payloads.GovernorRollback(
        reason="divergence",
        loss_at_panic=None,
        loss_threshold=12.0,
        consecutive_panics=3,
        penalty=-10.0,
        is_penalty_attributed=True,
        blamed_step=step - 1,
        num_steps_forfeited=4,
        pruned_slots=("r0c1",),
    )


def entropy_alarm() -> payloads.EntropyCollapseDetected:
    return payloads.EntropyCollapseDetected(
        head="tempo", entropy=0.03, threshold=0.05, consecutive_updates=3
    )


def outcome(env: Env, num_steps: int, status: str) -> payloads.EpisodeOutcome:
    return payloads.EpisodeOutcome(
        status=status,
        num_steps=num_steps,
        final_accuracy_pct=None if status == "failed" else env.accuracy,
        best_accuracy_pct=env.best,
        final_loss=0.4,
        total_reward=env.total_reward - 10.0 * env.rollbacks,
        task_return=env.total_reward - 10.0 * env.rollbacks - 0.5,
        stability=0.8,
        param_ratio=1.0 + 0.13 * env.fossilized,
        num_germinated=env.germinated,
        num_pruned=env.pruned,
        num_fossilized=env.fossilized,
        num_contributing_fossils=env.fossilized,
        num_rollbacks=env.rollbacks,
    )


def profile(*phases: str) -> Payload:
    return payloads.PhaseProfileCompleted(
        phases=tuple(
            payloads.PhaseTime(phase=phase, wall_ms=12.0 + len(phase), cpu_ms=10.0)
            for phase in phases
        )
    )


def mean_terms(items: list[RewardComponents]) -> RewardComponents:
    sums = {
        name: sum(getattr(item, name) for item in items) / len(items)
        for name in RewardComponents.__struct_fields__
    }
    return RewardComponents(**sums)


def ppo_update(random: Random, progress: float) -> payloads.PPOUpdateCompleted:
    """Make an update whose numbers move as those of a healthy run do; the rest stays unmeasured."""
    values: dict[str, object] = {}
    for item in msgspec.structs.fields(payloads.PPOUpdateCompleted):
        kind = str(item.type)
        if "dict" in kind:
            values[item.name] = {}
        elif "None" in kind:
            values[item.name] = None
        else:
            values[item.name] = False if "bool" in kind else 0.0 if "float" in kind else 4
    heads = {
        head.value: payloads.HeadUpdate(
            entropy=None
            if head is Head.ALPHA_SPEED and progress == 0
            else 0.95 - 0.4 * progress + random.gauss(0, 0.03) - 0.03 * position,
            learnable_fraction=0.4,
            gradient_norm=0.6,
            ratio_max=1.2,
            clip_fraction=0.1,
        )
        for position, head in enumerate(Head)
    }
    values |= {
        "policy_loss": -0.02 + random.gauss(0, 0.005),
        "value_loss": 1.4 * math.exp(-3 * progress) + 0.2,
        "entropy": 0.9 - 0.4 * progress,
        "gradient_norm": 1.5 + abs(random.gauss(0, 0.6)),
        "kl_divergence": abs(random.gauss(0.008, 0.003)),
        "clip_fraction": abs(random.gauss(0.12, 0.04)),
        "explained_variance": -0.2 + 0.9 * progress,
        "value_nrmse": 0.4 + 0.7 * math.exp(-3 * progress),
        "ratio_max": 1.4,
        "heads": heads,
        "learning_rate": 3e-4,
        "entropy_coef": 0.05,
        "update_ms": 480.0,
    }
    return payloads.PPOUpdateCompleted(**values)  # type: ignore[arg-type]
