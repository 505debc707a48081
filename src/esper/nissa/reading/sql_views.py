"""The views that `esper-telemetry query` offers, and the question each of them answers."""

from collections.abc import Mapping
from typing import Final

import msgspec

from esper.leyline.telemetry import EVENT_SPECS, EventSpec, EventType, Severity
from esper.nissa.reading.run_columns import config_columns

__all__ = ["VIEWS", "View", "view_sql"]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One view: the question it answers and what it selects."""

    name: str
    question: str
    types: tuple[EventType, ...] = ()
    """Event types whose payload fields become columns; empty for views that have `sql`."""
    sql: str | None = None
    has_config: bool = False
    """Whether the keys of the run's configuration become columns as well."""


_SCOPE: Final = (
    "run_id, seq, make_timestamp(CAST(ts * 1e6 AS BIGINT)) AS time, "
    "round, step, env_id, episode_id, severity"
)
"""UTC as a plain TIMESTAMP: fetching TIMESTAMPTZ in Python would require another package."""
_ALARMS: Final = tuple(
    spec.event_type
    for spec in EVENT_SPECS.values()
    if Severity(spec.severity).rank >= Severity.WARNING.rank
)


def _of(name: str, question: str, *types: EventType) -> View:
    return View(name=name, question=question, types=types)


_T = EventType

_ROWS: Final = (
    View(
        name="raw_events",
        question="what exactly was recorded?",
        sql=f'SELECT event_type, "group", {_SCOPE}, data FROM lines',
    ),
    View(
        name="runs",
        question="which runs are these, with which name, tags, shape, seed and configuration?",
        types=(_T.TRAINING_STARTED,),
        has_config=True,
    ),
    _of("endings", "how did the run end?", _T.RUN_FINISHED),
    _of("epochs", "how did each env's accuracy and loss evolve?", _T.EPOCH_COMPLETED),
    _of("ppo_updates", "is the policy's update healthy?", _T.PPO_UPDATE_COMPLETED),
    _of("rounds", "what accuracy and reward did each round reach?", _T.BATCH_EPOCH_COMPLETED),
    _of("batch_stats", "what grew in each round, which updates were skipped?", _T.BATCH_STATS),
    _of(
        "trends",
        "when did it plateau, degrade or improve?",
        _T.PLATEAU_DETECTED,
        _T.DEGRADATION_DETECTED,
        _T.IMPROVEMENT_DETECTED,
    ),
    _of(
        "seed_lifecycle",
        "what happened to each seed?",
        _T.SEED_GERMINATED,
        _T.SEED_GATE_EVALUATED,
        _T.SEED_STAGE_CHANGED,
        _T.SEED_FOSSILIZED,
        _T.SEED_PRUNED,
    ),
    _of(
        "causal_log",
        "which proposal and verdict led to which change?",
        _T.MORPHOLOGY_CAUSAL_LOG,
    ),
    _of("decisions", "which action was chosen, with what confidence and result?", _T.LAST_ACTION),
    View(
        name="action_distribution",
        question="how often was each op decided in each round, how often did it succeed?",
        sql=(
            f"SELECT {_SCOPE}, op, CAST(data->'counts'->>op AS BIGINT) AS num_decided, "
            "CAST(data->'successes'->>op AS BIGINT) AS num_succeeded "
            "FROM (SELECT *, unnest(json_keys(data->'counts')) AS op FROM lines "
            f"WHERE event_type = '{_T.ACTION_DISTRIBUTION}')"
        ),
    ),
    View(
        name="slot_actions",
        question="how often was each slot acted on in each round, with what success and reward?",
        sql=(
            f"SELECT {_SCOPE}, item->>'slot_id' AS slot_id, "
            "CAST(item->>'num_decided' AS BIGINT) AS num_decided, "
            "CAST(item->>'num_succeeded' AS BIGINT) AS num_succeeded, "
            "CAST(item->>'reward' AS DOUBLE) AS reward "
            "FROM (SELECT *, unnest(CAST(data->'slots' AS JSON[])) AS item FROM lines "
            f"WHERE event_type = '{_T.ACTION_DISTRIBUTION}')"
        ),
    ),
    View(
        name="rewards",
        question="which components made up each step's reward?",
        sql=(
            f"SELECT {_SCOPE}, data->>'op' AS op, CAST(data->>'reward' AS DOUBLE) AS reward, "
            "component, CAST(data->'reward_components'->>component AS DOUBLE) AS value "
            "FROM (SELECT *, unnest(json_keys(data->'reward_components')) AS component FROM lines "
            f"WHERE event_type = '{_T.LAST_ACTION}')"
        ),
    ),
    View(
        name="phases",
        question="where does the time go?",
        sql=(
            f"SELECT {_SCOPE}, item->>'phase' AS phase, "
            "CAST(item->>'wall_ms' AS DOUBLE) AS wall_ms, "
            "CAST(item->>'cpu_ms' AS DOUBLE) AS cpu_ms "
            "FROM (SELECT *, unnest(CAST(data->'phases' AS JSON[])) AS item FROM lines "
            f"WHERE event_type = '{_T.PHASE_PROFILE_COMPLETED}')"
        ),
    ),
    View(
        name="shapley",
        question="what is each slot's share of the gain?",
        sql=(
            f"SELECT {_SCOPE}, CAST(data->>'is_exact' AS BOOLEAN) AS is_exact, "
            "item->>'slot_id' AS slot_id, CAST(item->>'mean_pp' AS DOUBLE) AS mean_pp, "
            "CAST(item->>'std_pp' AS DOUBLE) AS std_pp "
            "FROM (SELECT *, unnest(CAST(data->'values' AS JSON[])) AS item FROM lines "
            f"WHERE event_type = '{_T.SHAPLEY_COMPUTED}')"
        ),
    ),
    View(
        name="seeds",
        question="what were each seed's stage, alpha and contribution at each step?",
        sql=(
            f"SELECT {_SCOPE}, item->>'slot_id' AS slot_id, item->>'stage' AS stage, "
            "item->>'blueprint' AS blueprint, CAST(item->>'alpha' AS DOUBLE) AS alpha, "
            "CAST(item->>'contribution_pp' AS DOUBLE) AS contribution_pp "
            "FROM (SELECT *, unnest(CAST(data->'seeds' AS JSON[])) AS item FROM lines "
            f"WHERE event_type = '{_T.EPOCH_COMPLETED}')"
        ),
    ),
    View(
        name="anomalies",
        question="which alarms were there, failures and rollbacks included?",
        sql=(
            f"SELECT event_type, {_SCOPE}, data FROM lines "
            f"WHERE event_type IN ({', '.join(repr(item.value) for item in _ALARMS)})"
        ),
    ),
    _of("rollbacks", "when was a host rolled back, and why?", _T.GOVERNOR_ROLLBACK),
    _of("failures", "which envs failed, where and how?", _T.ENV_FAILED),
    _of("episode_contexts", "in which context was each episode?", _T.EPISODE_CONTEXT_DRAWN),
    _of("episode_outcomes", "how did each episode end, at what size?", _T.EPISODE_OUTCOME),
    View(
        name="topology",
        question="which network had each episode grown by its end, slot by slot?",
        sql=(
            f"SELECT {_SCOPE}, item->>'slot_id' AS slot_id, item->>'seed_id' AS seed_id, "
            "item->>'blueprint' AS blueprint, item->>'stage' AS stage, "
            "CAST(item->>'alpha' AS DOUBLE) AS alpha, "
            "CAST(item->>'alpha_target' AS DOUBLE) AS alpha_target, item->>'style' AS style, "
            "CAST(item->>'num_params' AS BIGINT) AS num_params, "
            "CAST(item->>'germinated_at_step' AS BIGINT) AS germinated_at_step, "
            "CAST(item->>'kept_at_step' AS BIGINT) AS kept_at_step, "
            "CAST(item->>'contribution_pp' AS DOUBLE) AS contribution_pp, "
            "CAST(data->>'host_params' AS BIGINT) AS host_params, "
            "CAST(data->>'total_params' AS BIGINT) AS total_params "
            "FROM (SELECT *, unnest(CAST(data->'slots' AS JSON[])) AS item FROM lines "
            f"WHERE event_type = '{_T.TOPOLOGY_MANIFEST_RECORDED}')"
        ),
    ),
    View(
        name="reward_calibration",
        question="does reward track accuracy?",
        sql=(
            "SELECT count(*) AS num_episodes, "
            "corr(task_return, final_accuracy_pct) AS correlation, "
            "avg(task_return) AS mean_task_return, avg(total_reward) AS mean_reward, "
            "avg(final_accuracy_pct) AS mean_accuracy_pct "
            "FROM episode_outcomes WHERE status <> 'failed'"
        ),
    ),
    View(
        name="contexts",
        question="how did the episodes of each context end?",
        sql=(
            "SELECT drawn.context, count(*) AS num_episodes, "
            "avg(ended.final_accuracy_pct) AS mean_accuracy_pct, "
            "avg(ended.task_return) AS mean_task_return, "
            "avg(ended.param_ratio) AS mean_param_ratio, "
            "avg(ended.num_germinated) AS mean_germinated, "
            "avg(ended.num_fossilized) AS mean_fossilized, "
            "avg(ended.num_pruned) AS mean_pruned "
            "FROM episode_contexts drawn JOIN episode_outcomes ended "
            "USING (run_id, episode_id) WHERE ended.status <> 'failed' GROUP BY drawn.context"
        ),
    ),
    _of("throughput", "how fast was each round?", _T.THROUGHPUT),
    _of("checkpoints", "what was saved, and when?", _T.CHECKPOINT_SAVED),
    View(
        name="funnel",
        question="how many seeds of each blueprint reached which end?",
        sql=(
            "SELECT blueprint, count(*) FILTER (event_type = 'SEED_GERMINATED') AS num_germinated, "
            "count(*) FILTER (event_type = 'SEED_FOSSILIZED') AS num_fossilized, "
            "count(*) FILTER (event_type = 'SEED_PRUNED') AS num_pruned "
            "FROM seed_lifecycle WHERE blueprint IS NOT NULL GROUP BY blueprint"
        ),
    ),
)

VIEWS: Final[Mapping[str, View]] = {view.name: view for view in _ROWS}


def view_sql(view: View) -> str:
    """Return the statement that creates a view over the tables `lines` and `run_configs`."""
    return f'CREATE VIEW "{view.name}" AS {view.sql or _fields_sql(view)}'


def _fields_sql(view: View) -> str:
    """Select the scope and every payload field of the view's types as a column."""
    specs = [EVENT_SPECS[item] for item in view.types]
    columns: dict[str, str] = {}
    for spec in specs:
        columns |= _columns(spec)
    if view.has_config:
        columns["group"] = '"group"'
        columns |= config_columns(taken=columns)
    listed = ", ".join(f'{source} AS "{name}"' for name, source in columns.items())
    names = ", ".join(repr(item.value) for item in view.types)
    source = "lines LEFT JOIN run_configs USING (run_id)" if view.has_config else "lines"
    return f"SELECT event_type, {_SCOPE}, {listed} FROM {source} WHERE event_type IN ({names})"


def _columns(spec: EventSpec) -> dict[str, str]:
    return {
        field.name: _column(field.name, str(field.type))
        for field in msgspec.structs.fields(spec.payload)
    }


def _column(name: str, kind: str) -> str:
    """Return the expression that extracts a payload field, cast according to the field's type."""
    if "dict" in kind or "tuple" in kind or "Health" in kind or "Components" in kind:
        # JSON's null is a value in SQL, which `IS NULL` does not match.
        return f"nullif(data->'{name}', 'null')"
    if "float" in kind:
        return f"CAST(data->>'{name}' AS DOUBLE)"
    if "bool" in kind:
        return f"CAST(data->>'{name}' AS BOOLEAN)"
    if "int" in kind:
        return f"CAST(data->>'{name}' AS BIGINT)"
    return f"data->>'{name}'"
