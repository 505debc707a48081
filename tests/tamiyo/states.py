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
