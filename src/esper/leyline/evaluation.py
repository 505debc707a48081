"""Evaluation results of a frozen controller: per env, and the mean over envs."""

import msgspec

from esper.leyline.reports import EpisodeRecord

__all__ = ["EnvScore", "EvaluationReport", "MeanScore"]


class EnvScore(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one env."""

    seed: int
    env_id: int
    test_accuracy_pct: float | None
    """On the test split, which no decision depends on; None for a failed env."""
    test_loss: float | None
    num_params_added: int
    """Parameters of the seeds at the end."""
    episode: EpisodeRecord
    """Validation accuracy, seed counts, rewards and rollbacks of the episode."""


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
    task_return: float | None
    """The reward without shaping."""


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a frozen controller on new envs."""

    task: str
    controller: str
    """The controller: ppo, heuristic, random, wait or periodic."""
    is_greedy: bool
    """Actions are the most probable ones instead of samples."""
    rounds_trained: int | None
    """Rounds that the policy has learned from; None without a checkpoint."""
    seeds: tuple[int, ...]
    num_steps: int
    """Steps per episode."""
    num_test_samples: int
    envs: tuple[EnvScore, ...]
    """By seed, then env."""
    mean: MeanScore
