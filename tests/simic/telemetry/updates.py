"""Updates of which a test says only what matters to it."""

from typing import get_args

import msgspec

from esper.leyline.actions import HEADS
from esper.leyline.payloads import HeadUpdate, LstmHealth, PPOUpdateCompleted

PLAIN = {
    "policy_loss": 0.1,
    "value_loss": 0.5,
    "entropy": 0.6,
    "gradient_norm": 1.0,
    "kl_divergence": 0.01,
    "ratio_min": 0.9,
    "ratio_max": 1.1,
    "bellman_error": 0.5,
    "usable_steps": 10,
    "learning_rate": 3e-4,
    "entropy_coef": 0.05,
    "value_coef": 0.5,
    "num_optimizer_steps": 4,
    "update_ms": 1.0,
}


def head(entropy: float | None = 0.9, **changes) -> HeadUpdate:
    facts = {
        "entropy": entropy,
        "learnable_fraction": 1.0,
        "gradient_norm": 0.1,
        "ratio_max": 1.1,
        "clip_fraction": 0.0,
    }
    return HeadUpdate(**{**facts, **changes})


def lstm(h: float = 0.5, c: float = 0.5, **changes) -> LstmHealth:
    facts = {
        "h_rms": h,
        "c_rms": c,
        "h_env_rms_max": h,
        "c_env_rms_max": c,
        "h_abs_max": h,
        "c_abs_max": c,
        "has_nan": False,
        "has_inf": False,
    }
    return LstmHealth(**{**facts, **changes})


def update(**changes) -> PPOUpdateCompleted:
    """Return a healthy update with some figures replaced."""
    blank = {
        field.name: None if type(None) in get_args(field.type) else 0
        for field in msgspec.structs.fields(PPOUpdateCompleted)
    }
    collections = {"op_q_values": {}, "heads": {item.value: head() for item in HEADS}}
    flags = {"has_low_return_variance": False, "is_advantage_std_floored": False}
    return PPOUpdateCompleted(
        **{**blank, **collections, **flags, **PLAIN, "lstm_rollout": lstm(), **changes}
    )
