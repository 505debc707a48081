"""Advantages against closed forms."""

import random

import pytest
import torch
from torch import Tensor

from esper.simic.agent.gae import Advantages, compute_gae

GAMMA, LAMBDA = 0.97, 0.9


def random_episode(rng: random.Random, num_steps: int) -> list[dict[str, float]]:
    """Return rows cut into segments at random places, by any kind of end, with holes between."""
    rows = []
    for step in range(num_steps):
        is_valid = rng.random() < 0.9 or step == 0
        rows.append(
            {
                "reward": rng.gauss(0, 1),
                "value": rng.gauss(0, 1),
                "bootstrap": 0.0,
                "end": float(rng.random() < 0.2),
                "valid": float(is_valid),
            }
        )
    for step, row in enumerate(rows):
        is_last = step == num_steps - 1 or not rows[step + 1]["valid"]
        row["end"] = float(bool(row["valid"]) and (bool(row["end"]) or is_last))
        is_truncated = rng.random() < 0.5  # else terminal, be it by a rollback or otherwise
        row["bootstrap"] = rng.gauss(0, 1) if row["end"] and is_truncated else 0.0
    return rows


def gae_by_hand(rows: list[dict[str, float]]) -> list[float]:
    """Sum the discounted errors of each row's own segment, term by term."""
    advantages = []
    for step, row in enumerate(rows):
        if not row["valid"]:
            advantages.append(0.0)
            continue
        end = next(later for later in range(step, len(rows)) if rows[later]["end"])
        total = 0.0
        for later in range(step, end + 1):
            following = rows[later]["bootstrap"] if later == end else rows[later + 1]["value"]
            error = rows[later]["reward"] + GAMMA * following - rows[later]["value"]
            total += (GAMMA * LAMBDA) ** (later - step) * error
        advantages.append(total)
    return advantages


def paid_by_hand(rows: list[dict[str, float]]) -> list[float]:
    """Sum the discounted rewards of each row's own segment, term by term."""
    paid = []
    for step, row in enumerate(rows):
        end = next((later for later in range(step, len(rows)) if rows[later]["end"]), step)
        rest = (GAMMA ** (later - step) * rows[later]["reward"] for later in range(step, end + 1))
        paid.append(sum(rest) if row["valid"] else 0.0)
    return paid


def gae_of(episodes: list[list[dict[str, float]]]) -> Advantages:
    columns = {
        name: torch.tensor([[row[name] for row in rows] for rows in episodes], dtype=torch.float64)
        for name in ("reward", "value", "bootstrap", "end", "valid")
    }
    return compute_gae(
        rewards=columns["reward"],
        values=columns["value"],
        bootstrap_values=columns["bootstrap"],
        ends=columns["end"].bool(),
        valid=columns["valid"].bool(),
        gamma=GAMMA,
        gae_lambda=LAMBDA,
    )


def test_advantages_equal_the_brute_force_sum_over_a_thousand_episodes() -> None:
    rng = random.Random(1)
    for _ in range(50):
        num_steps = rng.randint(1, 15)
        episodes = [random_episode(rng, num_steps) for _ in range(20)]

        result = gae_of(episodes)

        for env, rows in enumerate(episodes):
            expected = gae_by_hand(rows)
            assert result.advantages[env].tolist() == pytest.approx(expected, abs=1e-10)
            returns = [
                advantage + row["value"] if row["valid"] else 0.0
                for advantage, row in zip(expected, rows, strict=True)
            ]
            assert result.returns[env].tolist() == pytest.approx(returns, abs=1e-10)
            paid = paid_by_hand(rows)
            assert result.realized[env].tolist() == pytest.approx(paid, abs=1e-10)


def test_each_env_has_the_advantages_it_would_have_alone() -> None:
    rng = random.Random(2)
    episodes = [random_episode(rng, 12) for _ in range(8)]

    together = gae_of(episodes).advantages

    for env, rows in enumerate(episodes):
        assert torch.equal(together[env], gae_of([rows]).advantages[0])


def one_row(*, bootstrap: float) -> Tensor:
    row = {"reward": 1.0, "value": 0.5, "bootstrap": bootstrap, "end": 1.0, "valid": 1.0}
    return gae_of([[row]]).advantages


def test_value_of_what_follows_enters_a_truncated_end_only() -> None:
    assert one_row(bootstrap=2.0).item() == pytest.approx(1.0 + GAMMA * 2.0 - 0.5)
    assert one_row(bootstrap=0.0).item() == pytest.approx(1.0 - 0.5)
