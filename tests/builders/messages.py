"""Messages, summaries and payloads of which a test states only what matters to it."""

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Style, Topology
from esper.leyline.alpha import AlphaState
from esper.leyline.attribution import AttributionEvidence, SeedEvidence
from esper.leyline.messages import EnvEvidence
from esper.leyline.payloads import TopologySlot
from esper.leyline.reports import BatchSummary, EpisodeRecord, EpisodeStatus, SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage


def make_signals(**changes) -> TrainingSignals:
    """Return the signals of a first step."""
    facts = {
        "step": 0,
        "train_loss": 1.0,
        "train_accuracy_pct": 50.0,
        "val_loss": 1.0,
        "val_accuracy_pct": 50.0,
        "loss_delta": None,
        "accuracy_delta_pp": None,
        "plateau_steps": 0,
        "stable_steps": 0,
        "is_stabilized": False,
        "best_val_accuracy_pct": 50.0,
        "loss_history": (1.0,),
        "accuracy_history": (50.0,),
    }
    return TrainingSignals(**{**facts, **changes})


def make_report(slot_id: str = "r0c0", stage: Stage = Stage.TRAINING, **changes) -> SeedReport:
    """Return a report of which only what matters needs to be said; the rest is unmeasured."""
    facts = {
        "slot_id": slot_id,
        "seed_id": "a",
        "blueprint": BLUEPRINTS_BY_TOPOLOGY[Topology.CNN][0],
        "stage": stage,
        "previous_stage": Stage.GERMINATED,
        "previous_stage_steps": 1,
        "steps_in_stage": 0,
        "age_steps": 6,
        "germinated_at_step": 0,
        "fossilized_at_step": None,
        "alpha": AlphaState(),
        "style": Style.LINEAR_ADD,
        "tempo_steps": 5,
        "num_params": 100,
        "accuracy_at_germination_pct": None,
        "accuracy_at_stage_start_pct": None,
        "accuracy_at_blending_start_pct": None,
        "current_accuracy_pct": None,
        "contribution_pp": None,
        "contribution_velocity_pp": None,
        "steps_since_contribution": None,
        "interaction_sum_pp": None,
        "boost_received_pp": None,
        "upstream_alpha_sum": 0.0,
        "downstream_alpha_sum": 0.0,
        "gradient": None,
        "previous_gradient_health": None,
    }
    return SeedReport(**{**facts, **changes})


def attribution(**contributions_pp: float) -> AttributionEvidence:
    """Return what a pass measured of these slots."""
    return AttributionEvidence(
        accuracy_pct=50.0,
        committed_accuracy_pct=40.0,
        seeds=tuple(
            SeedEvidence(
                slot_id=slot_id,
                contribution_pp=value,
                attributed_pp=value,
                interaction_sum_pp=None,
                boost_received_pp=None,
            )
            for slot_id, value in contributions_pp.items()
        ),
        interactions=(),
        shapley=(),
        is_exact=True,
    )


def env_evidence(env_id: int, step: int, *, delta: float | None = None, **changes) -> EnvEvidence:
    """Return what an env showed; its loss is too high for a terminal reward."""
    val_loss = changes.pop("val_loss", 3.0)
    facts = {
        "env_id": env_id,
        "signals": make_signals(step=step, val_loss=val_loss, loss_delta=delta),
        "reports": (),
        "attribution": attribution(),
        "coalitions": (),
        "strategy": "full_factorial",
        "stable_accuracy_pct": 50.0,
        "host_params": 1000,
        "total_params": 1000,
        "host_gradient_norm": None,
        "became_stable": False,
        "panic": None,
        "train_samples": 8,
        "trial_samples": 0,
        "val_samples": 4,
    }
    return EnvEvidence(**{**facts, **changes})


def batch_summary(accuracy_pct: float | None, **changes) -> BatchSummary:
    """Return the summary of a round with an update; its rolling accuracy is its own."""
    facts = {
        "round": 0,
        "episodes": (),
        "mean_accuracy_pct": accuracy_pct,
        "rolling_accuracy_pct": accuracy_pct,
        "mean_reward": 0.0,
        "mean_task_return": 0.0,
        "update_performed": True,
        "policy_loss": None,
        "value_loss": None,
        "entropy": None,
        "kl_divergence": None,
        "duration_s": 1.0,
    }
    return BatchSummary(**{**facts, **changes})


def make_episode(**changes) -> EpisodeRecord:
    """Return the record of an episode of one step in which nothing grew."""
    facts = {
        "round": 0,
        "env_id": 0,
        "episode_id": 0,
        "status": EpisodeStatus.TIMEOUT,
        "num_steps": 1,
        "final_accuracy_pct": 50.0,
        "best_accuracy_pct": 50.0,
        "final_loss": 1.0,
        "total_reward": 0.0,
        "task_return": 0.0,
        "stability": 1.0,
        "param_ratio": 1.0,
        "num_germinated": 0,
        "num_pruned": 0,
        "num_fossilized": 0,
        "num_contributing_fossils": 0,
        "num_rollbacks": 0,
    }
    return EpisodeRecord(**{**facts, **changes})


def topology_slot(slot_id: str = "r0c1", **changes) -> TopologySlot:
    """Return a fossilized slot at full alpha."""
    facts = {
        "slot_id": slot_id,
        "seed_id": "s",
        "blueprint": "conv_light",
        "stage": "FOSSILIZED",
        "alpha": 1.0,
        "alpha_target": 1.0,
        "style": "SIGMOID_ADD",
        "num_params": 321,
        "germinated_at_step": 1,
        "kept_at_step": None,
        "contribution_pp": None,
    }
    return TopologySlot(**{**facts, **changes})
