"""What an evaluation reports: a frozen controller's envs, one by one and in the mean."""

import msgspec

from esper.leyline.reports import EpisodeRecord

__all__ = ["EnvScore", "EvaluationReport", "MeanScore"]


class EnvScore(msgspec.Struct, frozen=True, kw_only=True):
    """What one env came to."""

    seed: int
    env_id: int
    test_accuracy_pct: float | None
    """On data that no decision has seen; None for an env that broke."""
    test_loss: float | None
    num_params_added: int
    """Parameters of the seeds at the end."""
    episode: EpisodeRecord
    """What the validation split and the rewards say: accuracy, seeds, reward, rollbacks."""


class MeanScore(msgspec.Struct, frozen=True, kw_only=True):
    """The mean over the envs that reached their end; None where none did."""

    test_accuracy_pct: float | None
    test_loss: float | None
    val_accuracy_pct: float | None
    num_params_added: float | None
    num_germinated: float | None
    num_fossilized: float | None
    num_pruned: float | None
    total_reward: float | None


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a frozen controller makes of fresh envs."""

    task: str
    controller: str
    """Who decides: ppo, heuristic, random, wait or periodic."""
    is_greedy: bool
    """Took the likeliest choices instead of sampling them."""
    rounds_trained: int | None
    """Rounds that the policy has learned from; None without a checkpoint."""
    seeds: tuple[int, ...]
    num_steps: int
    """Steps per episode."""
    num_test_samples: int
    envs: tuple[EnvScore, ...]
    """By seed, then env."""
    mean: MeanScore
