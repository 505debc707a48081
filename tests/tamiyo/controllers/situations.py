"""Situations for controllers, from signals and reports alone."""

from collections.abc import Sequence

from hypothesis import strategies as st
from tests.builders.messages import env_evidence, make_signals
from tests.tamiyo.states import SLOTS, envs, signals

from esper.leyline.actions import ActionSpec, Topology
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Gate, LifecycleRules
from esper.tamiyo.controllers.protocol import Controller, Situation
from esper.tamiyo.features import ActionFeedback, FeatureExtractor
from esper.tamiyo.masks import ActionMasker

RULES = ActionRules(slot_ids=SLOTS, topology=Topology.CNN)

rules = st.builds(
    ActionRules,
    slot_ids=st.just(SLOTS),
    topology=st.sampled_from(Topology),
    lifecycle=st.builds(
        LifecycleRules,
        auto_forward=st.sampled_from([(), (Gate.G1, Gate.G2, Gate.G3)]),
        min_prune_age_steps=st.integers(0, 8),
    ),
    max_seeds=st.none() | st.integers(1, 3),
)

seen = st.lists(st.none() | st.tuples(signals, envs), min_size=1, max_size=3)
steps = st.integers(0, 40)


def evidence_of(
    env_id: int = 0,
    reports: tuple[SeedReport, ...] = (),
    signals: TrainingSignals | None = None,
) -> EnvEvidence:
    return env_evidence(env_id, 0, reports=reports, signals=signals or make_signals())


def situation_of(
    *envs: EnvEvidence | None, step: int = 0, round_index: int = 0, rules: ActionRules = RULES
) -> Situation:
    reports = [() if env is None else env.reports for env in envs]
    shown = [make_signals() if env is None else env.signals for env in envs]
    return Situation(
        round=round_index,
        step=step,
        observations=FeatureExtractor(rules.slot_ids, 50).observe(
            shown, reports, [ActionFeedback()] * len(envs)
        ),
        masks=ActionMasker(rules).masks(reports),
        envs=envs,
    )


def evidences(
    shown: Sequence[tuple[TrainingSignals, tuple[SeedReport, ...]] | None],
) -> list[EnvEvidence | None]:
    return [
        None if env is None else evidence_of(env_id, env[1], env[0])
        for env_id, env in enumerate(shown)
    ]


def chosen(controller: Controller, *envs: EnvEvidence | None, step: int = 0) -> list[ActionSpec]:
    """Return what is chosen for envs that are all there."""
    actions = controller.choose(situation_of(*envs, step=step)).actions
    return [action for action in actions if action is not None]


def assert_legal(controller: Controller, situation: Situation, rules: ActionRules) -> None:
    """Check that every env gets a legal action and a quarantined one none."""
    choice = controller.choose(situation)
    assert choice.details == (None,) * len(situation.envs)
    assert len(choice.actions) == len(situation.envs)
    for env, action in zip(situation.envs, choice.actions, strict=True):
        assert (env is None) == (action is None)
        if env is not None and action is not None:
            assert is_legal(action, env.reports, rules)
