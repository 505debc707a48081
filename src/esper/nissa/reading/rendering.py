"""One readable line per event, for terminals."""

from collections.abc import Mapping
from datetime import datetime
from functools import singledispatch

import msgspec

from esper.leyline import payloads
from esper.leyline.context_payloads import EpisodeContextDrawn
from esper.leyline.errors import EventDecodeError, shown
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import Event, Severity, decode_event, event_type_of
from esper.leyline.untyped_json import decode_python_json
from esper.nissa.reading.foreign import foreign_event

__all__ = ["describe_line", "is_worrying", "place_of", "render_event", "render_line"]


def render_line(line: bytes) -> str:
    """Render a line of a log; a line that is not one of our events is shown truncated."""
    try:
        return render_event(decode_event(line))
    except (EventDecodeError, RecursionError):
        return _foreign(line)


def render_event(event: Event) -> str:
    """Render one event as time, scope and description."""
    clock = _clock(event.ts)
    mark = {Severity.WARNING: "! ", Severity.ERROR: "!! ", Severity.CRITICAL: "!!! "}
    return f"{clock} {_place(event):<13} {mark.get(event.severity, '')}{_describe(event.data)}"


def describe_line(line: bytes) -> str:
    """Describe the event of a line without its time and place."""
    try:
        return _describe(decode_event(line).data)
    except (EventDecodeError, RecursionError):
        return _foreign(line)


def place_of(line: bytes) -> str:
    """Return the round and step of an event, counted from 1, and its env's id, in words."""
    try:
        event = decode_event(line)
    except (EventDecodeError, RecursionError):
        return "a line of another format"
    named = [
        f"{name} {value + first}"
        for name, value, first in (
            ("round", event.round, 1),
            ("step", event.step, 1),
            ("env", event.env_id, 0),
        )
        if value is not None
    ]
    return ", ".join(named) or "the run as a whole"


def is_worrying(line: bytes) -> bool:
    """Check whether a line is an event of severity warning or higher."""
    try:
        return decode_event(line).severity.rank >= Severity.WARNING.rank
    except (EventDecodeError, RecursionError):
        return False


def _clock(ts: float) -> str:
    try:
        return datetime.fromtimestamp(ts).astimezone().strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "--:--:--"


def _place(event: Event) -> str:
    parts = [
        f"{letter}{value}"
        for letter, value in (("r", event.round), ("s", event.step), ("e", event.env_id))
        if value is not None
    ]
    return " ".join(parts) or "run"


def _field(name: str, value: object) -> str:
    if value is None or isinstance(value, Mapping | tuple | msgspec.Struct):
        return ""
    return f"{name} {_number(value) if isinstance(value, float) else value}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _pct(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}%"


def _signed(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.2f}pp"


@singledispatch
def _describe(data: Payload) -> str:
    """Describe a payload; types without a registered format list their scalar fields."""
    name = event_type_of(data).value.lower().replace("_", " ")
    fields = [_field(key, getattr(data, key)) for key in data.__struct_fields__]
    return f"{name}: {', '.join(text for text in fields if text)}"


@_describe.register
def _started(data: payloads.TrainingStarted) -> str:
    return (
        f"started {data.controller} on {data.task} ({data.data_source}): {data.num_rounds} rounds "
        f"x {data.num_envs} envs x {data.num_steps} steps, seed {data.seed}"
    )


@_describe.register
def _finished(data: payloads.RunFinished) -> str:
    reason = f" ({data.reason})" if data.reason else ""
    return (
        f"{data.status}{reason} after {data.rounds_completed} rounds in {data.duration_s:.1f}s, "
        f"best {_pct(data.best_accuracy_pct)}, final {_pct(data.final_accuracy_pct)}"
    )


@_describe.register
def _epoch(data: payloads.EpochCompleted) -> str:
    seeds = "".join(
        f"  {seed.slot_id} {seed.stage.lower()} {seed.blueprint} {seed.alpha:.0%}"
        for seed in data.seeds
    )
    return f"val {_pct(data.val_accuracy_pct)} loss {_number(data.val_loss)}{seeds}"


@_describe.register
def _action(data: payloads.LastAction) -> str:
    words = [data.op, data.slot_id, data.blueprint, data.style, data.alpha_target]
    what = " ".join(word for word in words if word)
    problem = data.veto_reason or data.failure_reason
    outcome = "" if data.succeeded else f"  refused: {problem or 'no reason given'}"
    return f"{what}  reward {_number(data.reward)}{outcome}"


@_describe.register
def _germinated(data: payloads.SeedGerminated) -> str:
    return f"{data.slot_id} germinated {data.blueprint} ({data.num_params:,} parameters)"


@_describe.register
def _gate(data: payloads.SeedGateEvaluated) -> str:
    verdict = "passed" if data.passed else f"failed ({', '.join(data.checks_failed)})"
    return f"{data.slot_id} gate {data.gate} to {data.target_stage} {verdict}"


@_describe.register
def _stage(data: payloads.SeedStageChanged) -> str:
    return f"{data.slot_id} {data.from_stage} -> {data.to_stage} at alpha {data.alpha:.2f}"


@_describe.register
def _fossilized(data: payloads.SeedFossilized) -> str:
    return (
        f"{data.slot_id} fossilized {data.blueprint}, contribution {_signed(data.contribution_pp)}"
    )


@_describe.register
def _pruned(data: payloads.SeedPruned) -> str:
    return f"{data.slot_id} pruned {data.blueprint} by {data.initiator}: {data.reason}"


@_describe.register
def _rollback(data: payloads.GovernorRollback) -> str:
    loss = f"loss {_number(data.loss_at_panic)} over {_number(data.loss_threshold)}"
    return f"rolled back ({data.reason}): {loss}, penalty {data.penalty:g}"


@_describe.register
def _failed(data: payloads.EnvFailed) -> str:
    where = f" in batch {data.batch}" if data.batch is not None else ""
    return f"failed during {data.phase}{where}: {data.error_type}: {data.message}"


@_describe.register
def _causal(data: payloads.MorphologyCausalLog) -> str:
    verdict = {True: " approved", False: f" refused: {data.reason}", None: ""}[data.approved]
    return f"{data.phase} {data.op} {data.slot_id}{verdict}"


@_describe.register
def _context(data: EpisodeContextDrawn) -> str:
    share = f", {data.sterile_share:.0%} of the seeds sterile" if data.sterile_share else ""
    return f"episode in context {data.context}{share}"


@_describe.register
def _outcome(data: payloads.EpisodeOutcome) -> str:
    return (
        f"episode {data.status}: {_pct(data.final_accuracy_pct)}, task return "
        f"{_number(data.task_return)}, reward {_number(data.total_reward)}, "
        f"{data.num_fossilized} fossils, size x{data.param_ratio:.2f}"
    )


@_describe.register
def _topology(data: payloads.TopologyManifestRecorded) -> str:
    slots = "".join(
        f"  {row.slot_id} {row.stage.lower()} {row.blueprint} {row.alpha:.0%}" for row in data.slots
    )
    size = f"{data.host_params:,} -> {data.total_params:,} parameters"
    return f"grown network: {size}{slots or '  no seeds'}"


@_describe.register
def _update(data: payloads.PPOUpdateCompleted) -> str:
    return (
        f"update: policy {_number(data.policy_loss)} value {_number(data.value_loss)} entropy "
        f"{_number(data.entropy)} kl {_number(data.kl_divergence)}"
    )


@_describe.register
def _round_stats(data: payloads.BatchStats) -> str:
    update = "" if data.update_performed else f", update skipped: {data.skip_reason}"
    return (
        f"seeds: {data.seeds_germinated} germinated, {data.seeds_fossilized} fossilized, "
        f"{data.seeds_pruned} pruned{update}"
    )


@_describe.register
def _round_end(data: payloads.BatchEpochCompleted) -> str:
    return (
        f"round done: mean {_pct(data.mean_accuracy_pct)}, rolling "
        f"{_pct(data.rolling_accuracy_pct)}, task return {_number(data.mean_task_return)}, "
        f"reward {_number(data.mean_reward)}"
    )


@_describe.register
def _distribution(data: payloads.ActionDistribution) -> str:
    return "ops: " + ", ".join(f"{op} {count}" for op, count in data.counts.items() if count)


@_describe.register
def _throughput(data: payloads.Throughput) -> str:
    return f"{data.env_steps} env-steps in {data.duration_s:.1f}s, {data.env_steps_per_s:.1f}/s"


@_describe.register
def _phases(data: payloads.PhaseProfileCompleted) -> str:
    return "phases: " + ", ".join(f"{item.phase} {item.wall_ms:.0f}ms" for item in data.phases)


@_describe.register
def _checkpoint(data: payloads.CheckpointSaved) -> str:
    best = ", the best so far" if data.is_best else ""
    return f"checkpoint after {data.rounds_completed} rounds{best}"


@_describe.register
def _matrix(data: payloads.CounterfactualMatrixComputed) -> str:
    return (
        f"counterfactual {data.strategy}: {len(data.coalitions)} coalitions of "
        f"{', '.join(data.slot_ids)}"
    )


@_describe.register
def _shapley(data: payloads.ShapleyComputed) -> str:
    values = ", ".join(f"{item.slot_id} {_signed(item.mean_pp)}" for item in data.values)
    return f"shapley: {values}"


@_describe.register
def _trend(data: payloads.TrendDetected) -> str:
    name = type(data).__name__.removesuffix("Detected").lower()
    return f"{name}: rolling {_pct(data.rolling_accuracy_pct)} ({_signed(data.rolling_delta_pp)})"


def _foreign(line: bytes) -> str:
    event = foreign_event(line)
    if event is None:
        return f"not an event: {shown(line)}"
    try:
        data = decode_python_json(line).get("data")
        return f"{event['event_type']}  {shown(data)}"
    except (ValueError, RecursionError):  # orjson decodes deeper values than Python prints
        return f"not an event: {shown(line)}"
