"""How alpha moves: pure steps over leyline's AlphaState."""

import math

import msgspec

from esper.leyline.alpha import MIN_STEEPNESS, AlphaCurve, AlphaMode, AlphaState
from esper.leyline.errors import ContractError

__all__ = ["curve_progress", "parked", "retarget", "step"]


def curve_progress(curve: AlphaCurve, time: float, steepness: float) -> float:
    """Return the completed fraction of a ramp at `time`, both from 0 to 1."""
    match curve:
        case AlphaCurve.LINEAR:
            return time
        case AlphaCurve.COSINE:
            return 0.5 * (1.0 - math.cos(math.pi * time))
        case AlphaCurve.SIGMOID:
            # The logistic curve rescaled to 0..1, written with tanh, which never overflows.
            half = max(steepness, MIN_STEEPNESS) / 4.0
            return 0.5 * (1.0 + math.tanh(half * (2.0 * time - 1.0)) / math.tanh(half))


def parked(alpha: float) -> AlphaState:
    """Return a state that stays at `alpha`."""
    return AlphaState(alpha=alpha, start=alpha, target=alpha)


def retarget(
    state: AlphaState,
    target: float,
    num_steps: int,
    *,
    curve: AlphaCurve | None = None,
    steepness: float | None = None,
) -> AlphaState:
    """Start a ramp from rest; a ramp of 0 steps, or to the current alpha, ends immediately.

    A curve or steepness of None keeps the previous one.
    """
    if state.mode is not AlphaMode.HOLD:
        raise ContractError(f"alpha is still moving to {state.target}; retarget it at rest")
    if not (0.0 <= target <= 1.0 and num_steps >= 0):
        raise ContractError(f"alpha target {target} over {num_steps} steps is out of range")
    has_way_to_go = num_steps > 0 and target != state.alpha
    return AlphaState(
        alpha=state.alpha if has_way_to_go else target,
        start=state.alpha,
        target=target,
        mode=_direction(state.alpha, target) if has_way_to_go else AlphaMode.HOLD,
        curve=state.curve if curve is None else curve,
        steepness=state.steepness if steepness is None else max(steepness, MIN_STEEPNESS),
        steps_total=num_steps if has_way_to_go else 0,
        steps_done=0,
    )


def step(state: AlphaState) -> AlphaState:
    """Advance the ramp by one step; the last step sets alpha exactly to the target."""
    if state.mode is AlphaMode.HOLD:
        return state
    num_done = state.steps_done + 1
    # Set rather than computed, so that a rounded curve cannot stop just short of its target.
    if num_done >= state.steps_total:
        return msgspec.structs.replace(
            state, alpha=state.target, mode=AlphaMode.HOLD, steps_done=state.steps_total
        )
    progress = curve_progress(state.curve, num_done / state.steps_total, state.steepness)
    low, high = sorted((state.start, state.target))
    # Rounding may carry a steep curve past its ends by one unit in the last place.
    alpha = min(max(state.start + (state.target - state.start) * progress, low), high)
    return msgspec.structs.replace(state, alpha=alpha, steps_done=num_done)


def _direction(alpha: float, target: float) -> AlphaMode:
    return AlphaMode.UP if target > alpha else AlphaMode.DOWN
