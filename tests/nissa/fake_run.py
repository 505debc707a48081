"""A made-up run that obeys every count, identity and order rule, out of real payload structs."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
from tests.builders.messages import topology_slot
from tests.nissa.making import write_blocks

from esper.leyline import payloads
from esper.leyline.config import Job, TrainingConfig
from esper.leyline.manifest import RunManifest
from esper.leyline.payloads import Payload
from esper.leyline.rewards import RewardComponents
from esper.leyline.telemetry import (
    RUN_SCOPE,
    SCHEMA_VERSION,
    Draft,
    Event,
    EventScope,
    build_event,
    encode_event,
)
from esper.nissa.storage.blocks import Block

HEADS = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve", "op")
OPS = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE")
STAGES = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")
GATES = {"TRAINING": "G1", "BLENDING": "G2", "HOLDING": "G3", "FOSSILIZED": "G5"}


@dataclass(frozen=True, kw_only=True)
class FakeRun:
    """What the made-up run looks like."""

    num_rounds: int = 2
    num_envs: int = 2
    num_steps: int = 8
    seed: int = 7
    run_id: str = "0a1b2c3d"
    started: float = 1_750_000_000.0
    machine_kind: str = "cpu test, torch 2, 1 thread"
    failed_env: int | None = None
    """Env that breaks in the middle of round 0."""
    skipped_round: int | None = None
    """Round whose update is skipped."""
    is_finished: bool = True

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of `events.jsonl`, without newlines."""
        return (encode_event(event) for event in self.events())

    def events(self) -> Iterator[Event]:
        """Yield the events of the run."""
        clock = Random(self.run_id)
        ts = self.started
        for seq, draft in enumerate(_Story(self).drafts()):
            ts += clock.random() / 100
            yield build_event(draft, seq=seq, ts=ts, run_id=self.run_id, group="default")

    def manifest(self) -> RunManifest:
        """Return what `run.json` says."""
        training = TrainingConfig(
            n_episodes=self.num_rounds,
            n_envs=self.num_envs,
            max_epochs=self.num_steps,
            seed=self.seed,
        )
        return RunManifest(
            run_id=self.run_id,
            created="2026-01-01T00:00:00Z",
            esper_version="0.2.0",
            schema_version=SCHEMA_VERSION,
            command="ppo",
            job=Job(training=training),
            versions={"python": "3.11"},
            commit="0123abc",
            cpu_model="test",
            num_cores=2,
            machine_kind=self.machine_kind,
            data_source="package",
        )

    def write(self, telemetry_dir: Path) -> Path:
        """Write a run directory and return it."""
        directory = telemetry_dir / f"20260101T000000Z_{self.run_id}"
        write_run(directory, self.lines(), self.manifest())
        return directory


def write_run(directory: Path, lines: Iterable[bytes], manifest: RunManifest | None = None) -> None:
    """Write lines as a run directory with its CRC file."""
    directory.mkdir(parents=True, exist_ok=True)
    write_log(directory / "events.jsonl", lines)
    (directory / "operational.jsonl").touch()
    if manifest is not None:
        (directory / "run.json").write_bytes(msgspec.json.encode(manifest))


def write_log(path: Path, lines: Iterable[bytes], *, block_lines: int = 256) -> None:
    """Write lines and, beside them, the checksum file: one row per block."""
    every = [line + b"\n" for line in lines]
    parts = [every[first : first + block_lines] for first in range(0, len(every), block_lines)]
    write_blocks(
        path,
        (
            Block(number * block_lines, len(part), b"".join(part))
            for number, part in enumerate(parts)
        ),
    )


@dataclass(eq=False)
class _Env:
    """One env's seed: none, or its stage and id."""

    seed_id: str | None = None
    stage: int = 0
    germinated: int = 0
    pruned: int = 0
    fossilized: int = 0


@dataclass(eq=False)
class _Story:
    """Yields the drafts of a run; the same shape and seed give the same run."""

    shape: FakeRun
    random: Random = field(init=False)
    clock: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.shape.seed)
        self.clock = Random(self.shape.run_id)

    def drafts(self) -> Iterator[Draft]:
        yield Draft(self._started())
        yield Draft(self._checkpoint(0))
        for round_index in range(self.shape.num_rounds):
            yield from self._round(round_index)
        if self.shape.is_finished:
            yield Draft(self._finished())

    def _round(self, round_index: int) -> Iterator[Draft]:
        envs = [_Env() for _ in range(self.shape.num_envs)]
        failed: set[int] = set()
        for step in range(self.shape.num_steps):
            for env_id, env in enumerate(envs):
                scope = self._scope(round_index, step, env_id)
                if env_id in failed:
                    continue
                if (round_index, step, env_id) == (0, self._middle, self.shape.failed_env):
                    failed.add(env_id)
                    yield Draft(self._failure(), scope)
                    yield Draft(self._outcome(env, step, "failed"), scope)
                    continue
                yield Draft(self._epoch(env), scope)
                yield from self._action(env, scope)
                if step == self.shape.num_steps - 1:
                    yield Draft(self._topology(env), scope)
                    yield Draft(self._outcome(env, step + 1, "timeout"), scope)
            yield Draft(self._profile("train", "validate"), EventScope(round_index, step))
        yield from self._tail(round_index, envs)

    @property
    def _middle(self) -> int:
        return self.shape.num_steps // 2

    def _scope(self, round_index: int, step: int, env_id: int) -> EventScope:
        return EventScope(round_index, step, env_id, round_index * self.shape.num_envs + env_id)

    def _tail(self, round_index: int, envs: list[_Env]) -> Iterator[Draft]:
        scope = EventScope(round_index)
        is_skipped = round_index == self.shape.skipped_round
        yield Draft(self._profile("update"), scope)
        if not is_skipped:
            yield Draft(self._update(), scope)
        yield Draft(
            payloads.BatchStats(
                seeds_germinated=sum(env.germinated for env in envs),
                seeds_fossilized=sum(env.fossilized for env in envs),
                seeds_pruned=sum(env.pruned for env in envs),
                rollback_attempts=0,
                unattributed_penalties=0,
                update_performed=not is_skipped,
                skip_reason="no usable steps" if is_skipped else None,
            ),
            scope,
        )
        yield Draft(self._batch_epoch(round_index), scope)
        counts = {op: self.random.randrange(9) for op in OPS}
        yield Draft(payloads.ActionDistribution(counts=counts, successes=counts), scope)
        yield Draft(
            payloads.MaskHitRates(num_decisions=9, legal_counts=counts, forced_count=1), scope
        )
        yield Draft(
            payloads.RewardSummary(
                mean_components=self._components(),
                mean_reward=self._number(),
                hindsight_credit=0.0,
                reward_scale=self._number(),
            ),
            scope,
        )
        yield Draft(
            payloads.Throughput(
                env_steps=16,
                train_samples=1000,
                val_samples=400,
                env_steps_per_s=self.clock.random(),
                feeder_wait_s=self.clock.random(),
                duration_s=self.clock.random(),
            ),
            scope,
        )
        yield Draft(self._checkpoint(round_index + 1), scope)

    def _action(self, env: _Env, scope: EventScope) -> Iterator[Draft]:
        op = self._choose(env)
        action_id = f"{scope.round}-{scope.step}-{scope.env_id}-r0c1-{op}"
        if op != "WAIT":
            for phase in ("proposal", "verdict", "mutation"):
                yield Draft(_link(phase, action_id, op), scope)
            yield from (Draft(payload, scope) for payload in self._lifecycle(op, env, action_id))
            yield Draft(_link("dispatch", action_id, op), scope)
            last = "fossilization" if op == "FOSSILIZE" else "commit"
            yield Draft(_link(last, action_id, op), scope)
        yield Draft(self._last_action(op), scope)

    def _choose(self, env: _Env) -> str:
        if env.seed_id is None:
            return "GERMINATE" if self.random.random() < 0.4 else "WAIT"
        if STAGES[env.stage] == "FOSSILIZED" or self.random.random() < 0.3:
            return "WAIT"
        if self.random.random() < 0.15:
            return "PRUNE"
        return "FOSSILIZE" if STAGES[env.stage] == "HOLDING" else "ADVANCE"

    def _lifecycle(self, op: str, env: _Env, action_id: str) -> Iterator[Payload]:
        if op == "GERMINATE":
            env.seed_id, env.stage, env.germinated = action_id, 0, env.germinated + 1
            yield self._germinated(env)
            return
        before = STAGES[env.stage]
        after = "PRUNED" if op == "PRUNE" else STAGES[env.stage + 1]
        if after != "PRUNED":
            yield _gate(env, after)
        yield payloads.SeedStageChanged(
            slot_id="r0c1",
            seed_id=env.seed_id or "",
            from_stage=before,
            to_stage=after,
            alpha=0.5,
            steps_in_from_stage=1,
            accuracy_delta_pp=self._number(),
        )
        if after == "PRUNED":
            yield self._pruned(env)
            env.seed_id, env.pruned = None, env.pruned + 1
            return
        env.stage += 1
        if after == "FOSSILIZED":
            env.fossilized += 1
            yield self._fossilized(env)

    def _number(self) -> float:
        return math.floor(self.random.random() * 1e6) / 1e4

    def _components(self) -> RewardComponents:
        return RewardComponents(attribution=self._number(), pbrs=self._number(), rent=-0.25)

    def _started(self) -> Payload:
        return payloads.TrainingStarted(
            esper_version="0.2.0",
            schema_version=SCHEMA_VERSION,
            controller="ppo",
            task="digits",
            preset=None,
            data_source="package",
            topology="cnn",
            host_params=1234,
            slot_ids=("r0c0", "r0c1", "r0c2"),
            num_rounds=self.shape.num_rounds,
            num_envs=self.shape.num_envs,
            num_steps=self.shape.num_steps,
            seed=self.shape.seed,
            reward_family="contribution",
            reward_mode="shaped",
            telemetry_level="normal",
            policy_params=99,
            policy_device="cpu",
            env_devices=("cpu",),
            num_lanes=self.clock.randrange(1, 9),
            amp_dtype=None,
            compile_mode="off",
            torch_version="2.13.0",
            resumed_from_round=None,
        )

    def _finished(self) -> Payload:
        return payloads.RunFinished(
            status="completed",
            reason=None,
            rounds_completed=self.shape.num_rounds,
            episodes_completed=self.shape.num_rounds * self.shape.num_envs,
            best_accuracy_pct=91.5,
            final_accuracy_pct=90.25,
            duration_s=self.clock.random(),
        )

    def _checkpoint(self, rounds_completed: int) -> Payload:
        return payloads.CheckpointSaved(
            rounds_completed=rounds_completed,
            log_seq=rounds_completed,
            is_best=False,
            path=f"checkpoints/{self.shape.run_id}, round {rounds_completed}.pt",
            num_bytes=1000,
        )

    def _epoch(self, env: _Env) -> Payload:
        seeds = () if env.seed_id is None else (self._snapshot(env),)
        return payloads.EpochCompleted(
            train_loss=self._number(),
            train_accuracy_pct=self._number(),
            val_loss=self._number(),
            val_accuracy_pct=self._number(),
            host_gradient_norm=self._number(),
            network_gradient_norm=self._number(),
            seeds=seeds,
        )

    def _snapshot(self, env: _Env) -> payloads.SeedSnapshot:
        return payloads.SeedSnapshot(
            slot_id="r0c1",
            stage=STAGES[env.stage],
            blueprint="conv_light",
            alpha=0.5,
            steps_in_stage=1,
            age_steps=2,
            contribution_pp=self._number(),
            contribution_velocity_pp=None,
            stage_improvement_pp=self._number(),
            interaction_sum_pp=None,
            boost_received_pp=None,
            upstream_alpha_sum=0.0,
            downstream_alpha_sum=0.0,
            gradient_norm=self._number(),
            gradient_ratio=1.0,
            gradient_health=1.0,
            has_vanishing_gradient=False,
            has_exploding_gradient=False,
        )

    def _last_action(self, op: str) -> Payload:
        choice = payloads.HeadChoice(choice=op, confidence=self._number(), entropy=0.5, num_valid=3)
        return payloads.LastAction(
            op=op,
            effective_op=op,
            slot_id=None if op == "WAIT" else "r0c1",
            blueprint="conv_light" if op == "GERMINATE" else None,
            style=None,
            tempo=None,
            alpha_target=None,
            alpha_speed=None,
            alpha_curve=None,
            succeeded=True,
            is_forced=False,
            veto_reason=None,
            failure_reason=None,
            value_estimate=self._number(),
            op_probabilities=dict.fromkeys(OPS, 0.125),
            heads=dict.fromkeys(HEADS, choice),
            reward=self._number(),
            reward_components=self._components(),
        )

    def _germinated(self, env: _Env) -> Payload:
        return payloads.SeedGerminated(
            slot_id="r0c1",
            seed_id=env.seed_id or "",
            blueprint="conv_light",
            num_params=321,
            style="SIGMOID_ADD",
            tempo_steps=5,
            alpha_target=1.0,
        )

    def _pruned(self, env: _Env) -> Payload:
        return payloads.SeedPruned(
            slot_id="r0c1",
            seed_id=env.seed_id or "",
            blueprint="conv_light",
            reason="policy",
            initiator="policy",
            age_steps=3,
            contribution_pp=None,
            improvement_pp=self._number(),
            blending_delta_pp=None,
        )

    def _fossilized(self, env: _Env) -> Payload:
        return payloads.SeedFossilized(
            slot_id="r0c1",
            seed_id=env.seed_id or "",
            blueprint="conv_light",
            num_params=321,
            age_steps=4,
            contribution_pp=self._number(),
            improvement_pp=self._number(),
            blending_delta_pp=None,
        )

    def _failure(self) -> Payload:
        return payloads.EnvFailed(
            phase="train",
            batch=3,
            slot_id=None,
            layer=None,
            error_type="ValueError",
            message='a "quoted" reason',
        )

    def _outcome(self, env: _Env, num_steps: int, status: str) -> Payload:
        return payloads.EpisodeOutcome(
            status=status,
            num_steps=num_steps,
            final_accuracy_pct=self._number(),
            best_accuracy_pct=self._number(),
            final_loss=self._number(),
            total_reward=self._number(),
            task_return=self._number(),
            stability=0.75,
            param_ratio=1.25,
            num_germinated=env.germinated,
            num_pruned=env.pruned,
            num_fossilized=env.fossilized,
            num_contributing_fossils=0,
            num_rollbacks=0,
        )

    def _topology(self, env: _Env) -> Payload:
        slots = ()
        if env.seed_id is not None:
            slots = (
                topology_slot(
                    seed_id=env.seed_id,
                    stage=STAGES[env.stage],
                    alpha=0.5,
                    kept_at_step=5 if STAGES[env.stage] == "FOSSILIZED" else None,
                ),
            )
        return payloads.TopologyManifestRecorded(
            host_params=1234, total_params=1234 + 321 * len(slots), slots=slots
        )

    def _profile(self, *phases: str) -> Payload:
        return payloads.PhaseProfileCompleted(
            phases=tuple(
                payloads.PhaseTime(
                    phase=phase, wall_ms=self.clock.random(), cpu_ms=self.clock.random()
                )
                for phase in phases
            )
        )

    def _batch_epoch(self, round_index: int) -> Payload:
        return payloads.BatchEpochCompleted(
            episodes_completed=(round_index + 1) * self.shape.num_envs,
            mean_accuracy_pct=self._number(),
            rolling_accuracy_pct=self._number(),
            mean_reward=self._number(),
            mean_task_return=self._number(),
            env_accuracies_pct=(self._number(),) * self.shape.num_envs,
            env_rewards=(self._number(),) * self.shape.num_envs,
        )

    def _update(self) -> Payload:
        values: dict[str, object] = {}
        for item in msgspec.structs.fields(payloads.PPOUpdateCompleted):
            kind = str(item.type)
            values[item.name] = (
                {}
                if "dict" in kind
                else None
                if "LstmHealth" in kind
                else False
                if "bool" in kind
                else self._number()
                if "float" in kind
                else 4
            )
        values["update_ms"] = self.clock.random()
        return payloads.PPOUpdateCompleted(**values)  # type: ignore[arg-type]


def _link(phase: str, action_id: str, op: str) -> Payload:
    return payloads.MorphologyCausalLog(
        phase=phase,
        action_id=action_id,
        op=op,
        slot_id="r0c1",
        blueprint=None,
        observation_hash="0123456789abcdef",
        approved=True if phase == "verdict" else None,
        reason=None,
    )


def _gate(env: _Env, target: str) -> Payload:
    return payloads.SeedGateEvaluated(
        slot_id="r0c1",
        seed_id=env.seed_id or "",
        gate=GATES[target],
        target_stage=target,
        passed=True,
        score=1.0,
        checks_passed=("dwell",),
        checks_failed=(),
    )


__all__ = ["RUN_SCOPE", "FakeRun", "write_log", "write_run"]
