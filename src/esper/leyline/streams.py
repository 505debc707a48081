"""Named random streams: every random choice of a run has its own seed, derived here."""

import hashlib
from enum import StrEnum

__all__ = ["StreamPurpose", "stream_seed"]


class StreamPurpose(StrEnum):
    """What a stream's numbers are drawn for; a stored run depends on these words."""

    INIT = "init"
    """Parameters of a host."""
    SEED_INIT = "seed_init"
    """Parameters of a seed that germinates."""
    POLICY_INIT = "policy_init"
    DATA_ORDER = "data_order"
    AUGMENTATION = "augmentation"
    DROPOUT = "dropout"
    ACTION = "action"
    UPDATE = "update"
    """Order of the minibatches of a PPO update."""
    SHAPLEY = "shapley"
    PROBE = "probe"
    """Hidden draws of a probe's env."""
    PROBE_NOISE = "probe_noise"
    """What the measurements of a probe's env are off by."""
    CONTEXT = "context"
    """Context of an episode, and what it changes of the data."""
    SEED_LUCK = "seed_luck"
    """Which seeds of an episode are sterile."""
    SWAP = "swap"
    """Whose observation a blind policy is shown."""
    TRIAL = "trial"
    """Settings of a trial of a sweep."""
    SYNTHETIC = "synthetic"
    """Synthetic data where there are no real data."""


def stream_seed(
    run_seed: int,
    *,
    purpose: StreamPurpose,
    round: int | None = None,
    env: int | None = None,
    step: int | None = None,
) -> int:
    """Return the 63-bit seed of one stream.

    Streams that differ in any argument are independent of each other. A coordinate that a stream
    does not depend on is left out, which differs from 0.
    """
    name = f"{run_seed}/{purpose.value}/{round}/{env}/{step}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
