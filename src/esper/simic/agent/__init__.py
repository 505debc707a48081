"""The learner: rollout buffer, advantages, PPO update and its metrics."""
