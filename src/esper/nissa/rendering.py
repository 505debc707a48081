"""One readable line per event, for terminals."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from esper.leyline.errors import EventDecodeError, shown
from esper.leyline.telemetry import Event, EventType, Severity, decode_event

__all__ = ["is_worrying", "render_event", "render_line"]

# The payload's class differs from type to type; each renderer knows its own.
_Renderer: TypeAlias = Callable[[Any], str]


def render_line(line: bytes) -> str:
    """Render a line of a log; one that is no event of ours is shown as it is, shortened."""
    try:
        return render_event(decode_event(line))
    except (EventDecodeError, RecursionError):
        return _foreign(line)


def render_event(event: Event) -> str:
    """Render one event: time, where, what."""
    clock = _clock(event.ts)
    mark = {Severity.WARNING: "! ", Severity.ERROR: "!! ", Severity.CRITICAL: "!!! "}
    text = _text(event)
    return f"{clock} {_place(event):<13} {mark.get(event.severity, '')}{text}"


def is_worrying(line: bytes) -> bool:
    """Tell whether a line is an event of severity warning or worse."""
    try:
        return decode_event(line).severity.rank >= Severity.WARNING.rank
    except (EventDecodeError, RecursionError):
        return False


def _clock(ts: float) -> str:
    try:
        return datetime.fromtimestamp(ts, UTC).strftime("%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "--:--:--Z"


def _place(event: Event) -> str:
    parts = [
        f"{letter}{value}"
        for letter, value in (("r", event.round), ("s", event.step), ("e", event.env_id))
        if value is not None
    ]
    return " ".join(parts) or "run"


def _text(event: Event) -> str:
    renderer = _RENDERERS.get(event.event_type)
    if renderer is not None:
        return renderer(event.data)
    name = event.event_type.value.lower().replace("_", " ")
    fields = [_field(key, getattr(event.data, key)) for key in event.data.__struct_fields__]
    return f"{name}: {', '.join(text for text in fields if text)}"


def _field(name: str, value: object) -> str:
    if value is None or isinstance(value, Mapping | tuple):
        return ""
    return f"{name} {_number(value) if isinstance(value, float) else value}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _pct(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}%"


def _signed(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.2f}pp"


def _started(data: Any) -> str:
    return (
        f"started {data.controller} on {data.task} ({data.data_source}): {data.num_rounds} rounds x "
        f"{data.num_envs} envs x {data.num_steps} steps, seed {data.seed}"
    )


def _finished(data: Any) -> str:
    reason = f" ({data.reason})" if data.reason else ""
    return (
        f"{data.status}{reason} after {data.rounds_completed} rounds in {data.duration_s:.1f}s, "
        f"best {_pct(data.best_accuracy_pct)}, final {_pct(data.final_accuracy_pct)}"
    )


def _epoch(data: Any) -> str:
    seeds = "".join(
        f"  {seed.slot_id} {seed.stage.lower()} {seed.blueprint} {seed.alpha:.0%}"
        for seed in data.seeds
    )
    return f"val {_pct(data.val_accuracy_pct)} loss {_number(data.val_loss)}{seeds}"


def _action(data: Any) -> str:
    words = [data.op, data.slot_id, data.blueprint, data.style, data.alpha_target]
    what = " ".join(word for word in words if word)
    problem = data.veto_reason or data.failure_reason
    outcome = "" if data.succeeded else f"  refused: {problem or 'no reason given'}"
    return f"{what}  reward {_number(data.reward)}{outcome}"


def _germinated(data: Any) -> str:
    return f"{data.slot_id} germinated {data.blueprint} ({data.num_params:,} parameters)"


def _gate(data: Any) -> str:
    verdict = "passed" if data.passed else f"failed ({', '.join(data.checks_failed)})"
    return f"{data.slot_id} gate {data.gate} to {data.target_stage} {verdict}"


def _stage(data: Any) -> str:
    return f"{data.slot_id} {data.from_stage} -> {data.to_stage} at alpha {data.alpha:.2f}"


def _fossilized(data: Any) -> str:
    return (
        f"{data.slot_id} fossilized {data.blueprint}, contribution {_signed(data.contribution_pp)}"
    )


def _pruned(data: Any) -> str:
    return f"{data.slot_id} pruned {data.blueprint} by {data.initiator}: {data.reason}"


def _rollback(data: Any) -> str:
    loss = f"loss {_number(data.loss_at_panic)} over {_number(data.loss_threshold)}"
    return f"rolled back ({data.reason}): {loss}, penalty {data.penalty:g}"


def _failed(data: Any) -> str:
    where = f" in batch {data.batch}" if data.batch is not None else ""
    return f"failed during {data.phase}{where}: {data.error_type}: {data.message}"


def _causal(data: Any) -> str:
    verdict = {True: " approved", False: f" refused: {data.reason}", None: ""}[data.approved]
    return f"{data.phase} {data.op} {data.slot_id}{verdict}"


def _outcome(data: Any) -> str:
    return (
        f"episode {data.status}: {_pct(data.final_accuracy_pct)}, reward "
        f"{_number(data.total_reward)}, {data.num_fossilized} fossils, size x{data.param_ratio:.2f}"
    )


def _update(data: Any) -> str:
    return (
        f"update: policy {_number(data.policy_loss)} value {_number(data.value_loss)} entropy "
        f"{_number(data.entropy)} kl {_number(data.kl_divergence)}"
    )


def _round_stats(data: Any) -> str:
    update = "" if data.update_performed else f", update skipped: {data.skip_reason}"
    return (
        f"seeds: {data.seeds_germinated} germinated, {data.seeds_fossilized} fossilized, "
        f"{data.seeds_pruned} pruned{update}"
    )


def _round_end(data: Any) -> str:
    return (
        f"round done: mean {_pct(data.mean_accuracy_pct)}, rolling "
        f"{_pct(data.rolling_accuracy_pct)}, reward {_number(data.mean_reward)}"
    )


def _distribution(data: Any) -> str:
    return "ops: " + ", ".join(f"{op} {count}" for op, count in data.counts.items() if count)


def _throughput(data: Any) -> str:
    return f"{data.env_steps} env-steps in {data.duration_s:.1f}s, {data.env_steps_per_s:.1f}/s"


def _phases(data: Any) -> str:
    return "phases: " + ", ".join(f"{item.phase} {item.wall_ms:.0f}ms" for item in data.phases)


def _checkpoint(data: Any) -> str:
    best = ", the best so far" if data.is_best else ""
    return f"checkpoint after {data.rounds_completed} rounds{best}"


def _matrix(data: Any) -> str:
    return (
        f"counterfactual {data.strategy}: {len(data.coalitions)} coalitions of "
        f"{', '.join(data.slot_ids)}"
    )


def _shapley(data: Any) -> str:
    values = ", ".join(f"{item.slot_id} {_signed(item.mean_pp)}" for item in data.values)
    return f"shapley: {values}"


def _trend(data: Any) -> str:
    name = type(data).__name__.removesuffix("Detected").lower()
    return f"{name}: rolling {_pct(data.rolling_accuracy_pct)} ({_signed(data.rolling_delta_pp)})"


_RENDERERS: Final[Mapping[EventType, _Renderer]] = {
    EventType.TRAINING_STARTED: _started,
    EventType.RUN_FINISHED: _finished,
    EventType.EPOCH_COMPLETED: _epoch,
    EventType.LAST_ACTION: _action,
    EventType.SEED_GERMINATED: _germinated,
    EventType.SEED_GATE_EVALUATED: _gate,
    EventType.SEED_STAGE_CHANGED: _stage,
    EventType.SEED_FOSSILIZED: _fossilized,
    EventType.SEED_PRUNED: _pruned,
    EventType.GOVERNOR_ROLLBACK: _rollback,
    EventType.ENV_FAILED: _failed,
    EventType.MORPHOLOGY_CAUSAL_LOG: _causal,
    EventType.EPISODE_OUTCOME: _outcome,
    EventType.PPO_UPDATE_COMPLETED: _update,
    EventType.BATCH_STATS: _round_stats,
    EventType.BATCH_EPOCH_COMPLETED: _round_end,
    EventType.ACTION_DISTRIBUTION: _distribution,
    EventType.THROUGHPUT: _throughput,
    EventType.PHASE_PROFILE_COMPLETED: _phases,
    EventType.CHECKPOINT_SAVED: _checkpoint,
    EventType.COUNTERFACTUAL_MATRIX_COMPUTED: _matrix,
    EventType.SHAPLEY_COMPUTED: _shapley,
    EventType.PLATEAU_DETECTED: _trend,
    EventType.DEGRADATION_DETECTED: _trend,
    EventType.IMPROVEMENT_DETECTED: _trend,
}
"""Types with a form of their own; the others list their plain fields."""


def _foreign(line: bytes) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return f"not an event: {shown(line)}"
    if not isinstance(value, dict) or not isinstance(value.get("event_type"), str):
        return f"not an event: {shown(line)}"
    return f"{value['event_type']}  {shown(value.get('data'))}"
