"""Random envs: seed reports, signals and feedback, as Hypothesis strategies."""

import math

from hypothesis import strategies as st

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Op, Style, Topology
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.signals import HISTORY_LENGTH, TrainingSignals
from esper.leyline.stages import Stage
from esper.tamiyo.features import ActionFeedback

SLOTS = ("r0c0", "r0c1", "r0c2")

shares = st.floats(0.0, 1.0)
points = st.floats(-30.0, 30.0)
measured_points = st.none() | points
counts = st.integers(0, 60)
readings = st.floats(0.0, 1e6) | st.sampled_from([math.nan, math.inf])

alphas = st.builds(
    AlphaState,
    alpha=shares,
    start=shares,
    target=shares,
    mode=st.sampled_from(AlphaMode),
    steps_total=st.integers(0, 8),
    steps_done=st.integers(0, 8),
)

gradients = st.none() | st.builds(
    GradientReading,
    norm=readings,
    ratio=shares,
    health=shares,
    has_vanishing=st.booleans(),
    has_exploding=st.booleans(),
)

life_stages = st.sampled_from([stage for stage in Stage if stage >= Stage.GERMINATED])


def reports_in(slot_id: str) -> st.SearchStrategy[SeedReport]:
    """Return reports of any seed in one slot."""
    return st.builds(
        SeedReport,
        slot_id=st.just(slot_id),
        seed_id=st.just(f"seed in {slot_id}"),
        blueprint=st.sampled_from(BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]),
        stage=life_stages,
        previous_stage=st.sampled_from(Stage),
        previous_stage_steps=counts,
        steps_in_stage=counts,
        age_steps=st.integers(0, 12),
        germinated_at_step=st.integers(0, 12),
        fossilized_at_step=st.none() | st.integers(0, 24),
        alpha=alphas,
        style=st.sampled_from(Style),
        tempo_steps=st.sampled_from([3, 5, 8]),
        num_params=st.integers(0, 1000),
        accuracy_at_germination_pct=st.none() | st.floats(0.0, 100.0),
        accuracy_at_stage_start_pct=st.none() | st.floats(0.0, 100.0),
        accuracy_at_blending_start_pct=st.none(),
        current_accuracy_pct=st.none() | st.floats(0.0, 100.0),
        contribution_pp=measured_points,
        contribution_velocity_pp=measured_points,
        steps_since_contribution=st.none() | counts,
        interaction_sum_pp=measured_points,
        boost_received_pp=measured_points,
        upstream_alpha_sum=shares,
        downstream_alpha_sum=shares,
        gradient=gradients,
        previous_gradient_health=st.none() | shares,
    )


envs = st.tuples(*(st.none() | reports_in(slot_id) for slot_id in SLOTS)).map(
    lambda slots: tuple(report for report in slots if report is not None)
)

losses = st.floats(0.0, 20.0) | st.sampled_from([math.nan, math.inf])
accuracies = st.floats(0.0, 100.0)

signals = st.builds(
    TrainingSignals,
    step=st.integers(0, 50),
    train_loss=losses,
    train_accuracy_pct=accuracies,
    val_loss=losses,
    val_accuracy_pct=accuracies,
    loss_delta=st.none() | points,
    accuracy_delta_pp=measured_points,
    plateau_steps=counts,
    stable_steps=counts,
    is_stabilized=st.booleans(),
    best_val_accuracy_pct=accuracies,
    loss_history=st.lists(losses, max_size=HISTORY_LENGTH).map(tuple),
    accuracy_history=st.lists(accuracies, max_size=HISTORY_LENGTH).map(tuple),
)

feedback = st.builds(ActionFeedback, op=st.sampled_from(Op), has_succeeded=st.booleans())

batches = st.lists(st.tuples(signals, envs, feedback), min_size=1, max_size=4)


def make_report(slot_id: str = "r0c0", stage: Stage = Stage.TRAINING, **changes) -> SeedReport:
    """Return a report of which only what matters needs to be said; the rest is unmeasured."""
    facts = {
        "slot_id": slot_id,
        "seed_id": "a",
        "blueprint": BLUEPRINTS_BY_TOPOLOGY[Topology.CNN][0],
        "stage": stage,
        "previous_stage": Stage.GERMINATED,
        "previous_stage_steps": 1,
        "steps_in_stage": 0,
        "age_steps": 6,
        "germinated_at_step": 0,
        "fossilized_at_step": None,
        "alpha": AlphaState(),
        "style": Style.LINEAR_ADD,
        "tempo_steps": 5,
        "num_params": 100,
        "accuracy_at_germination_pct": None,
        "accuracy_at_stage_start_pct": None,
        "accuracy_at_blending_start_pct": None,
        "current_accuracy_pct": None,
        "contribution_pp": None,
        "contribution_velocity_pp": None,
        "steps_since_contribution": None,
        "interaction_sum_pp": None,
        "boost_received_pp": None,
        "upstream_alpha_sum": 0.0,
        "downstream_alpha_sum": 0.0,
        "gradient": None,
        "previous_gradient_health": None,
    }
    return SeedReport(**{**facts, **changes})


def make_signals(**changes) -> TrainingSignals:
    """Return the signals of a first step."""
    facts = {
        "step": 0,
        "train_loss": 1.0,
        "train_accuracy_pct": 50.0,
        "val_loss": 1.0,
        "val_accuracy_pct": 50.0,
        "loss_delta": None,
        "accuracy_delta_pp": None,
        "plateau_steps": 0,
        "stable_steps": 0,
        "is_stabilized": False,
        "best_val_accuracy_pct": 50.0,
        "loss_history": (1.0,),
        "accuracy_history": (50.0,),
    }
    return TrainingSignals(**{**facts, **changes})
