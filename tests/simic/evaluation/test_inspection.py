"""Inspections change nothing of what a policy does, and sabotage changes what it should notice."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from tests.builders.messages import make_report, make_signals
from tests.builders.probe_jobs import probe_job
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.simic.training.envs import SLOTS, grow, world_of
from tests.simic.training.runs import last_checkpoint
from tests.tamiyo.controllers.situations import evidence_of

from esper.leyline.actions import Op
from esper.leyline.errors import UsageError
from esper.leyline.legality import ActionRules
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import GradientReading
from esper.leyline.schedules import Schedule, ThresholdRule
from esper.leyline.stages import Stage
from esper.scripts.train import main as esper_train
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.evaluation.inspected_policy import FLIPS, InspectedPolicy
from esper.simic.evaluation.inspection import inspect_policy, sabotage_figures
from esper.simic.training import sabotage
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.checkpoints.resuming import load_run
from esper.tamiyo.controllers.protocol import Situation
from esper.tamiyo.controllers.threshold import ThresholdController
from esper.tamiyo.features import ActionFeedback, FeatureExtractor
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag

QUICK = {"auto_forward": [1, 2, 3], "min_training_steps": 1, "min_prune_age_steps": 2}
STEPS = 12
JUDGE = ThresholdRule(
    slots=("r0c0",),
    blueprint="conv_light",
    style="sigmoid_add",
    first_step=0,
    last_step=0,
    after_steps=4,
    keep_above_pp=1000.0,
    prune_below_pp=0.0,
)
"""Prunes what harms, and keeps nothing."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tiny_run(
        tmp_path_factory.mktemp("trained"), n_episodes=1, max_epochs=STEPS, lifecycle=QUICK
    )
    return last_checkpoint(run.run_dir)


def played(setup: RunSetup) -> EvaluationRound:
    with one_thread_per_worker():
        return run_event_loop(partial(evaluate_round, setup), setup.worker.stop)


# --- Sabotage ------------------------------------------------------------------------------------


def judged_probe(
    directory: Path, sabotage_step: int | None, name: str = "rent", num_envs: int = 6
) -> RunSetup:
    """Return envs decided by a rule that prunes what harms; in `rent` a seed adds 5 points."""
    job = probe_job(name, directory, n_envs=num_envs)
    setup = prepare_run(job, "wait", None, StopFlag(), parts=RunParts())
    return replace(
        setup,
        controller=ThresholdController(setup.worker.rules, JUDGE),
        worker=replace(setup.worker, sabotage_step=sabotage_step),
    )


def test_rule_that_prunes_what_harms_prunes_every_sabotaged_seed_and_no_other(
    tmp_path: Path,
) -> None:
    setup = judged_probe(tmp_path, 6)
    done = played(setup)

    figures = sabotage_figures([done, done], setup, 6)

    assert (figures.num_sabotaged, figures.num_intact) == (6, 6)
    assert (figures.pruned_sabotaged, figures.pruned_intact) == (1.0, 0.0)
    assert figures.difference is not None
    assert (figures.difference.low, figures.difference.high) == (1.0, 1.0)


def test_duds_are_no_targets_as_they_are_pruned_without_sabotage_too(tmp_path: Path) -> None:
    setup = judged_probe(tmp_path, 4, "lottery", num_envs=16)
    done = played(setup)
    has_dud = ["prune" in ops_of(done.actions[env_id]) for env_id in range(0, 16, 2)]
    assert any(has_dud)

    figures = sabotage_figures([done], setup, 4)

    assert figures.num_intact == has_dud.count(False) > 0
    assert (figures.pruned_sabotaged, figures.pruned_intact) == (1.0, 0.0)


def ops_of(actions: Schedule) -> list[str]:
    return [action.op for action in actions]


def test_without_sabotage_nothing_is_pruned(tmp_path: Path) -> None:
    setup = judged_probe(tmp_path, None)

    figures = sabotage_figures([played(setup)], setup, 6)

    assert (figures.pruned_sabotaged, figures.pruned_intact) == (0.0, 0.0)
    assert figures.difference is None


def test_sabotaged_network_is_disturbed_and_its_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No seed is useful in a run as short as this one.
    monkeypatch.setattr(sabotage, "MIN_WORTH_PP", -100.0)
    job = tiny_job(tmp_path, n_envs=2, max_epochs=STEPS, lifecycle=QUICK)
    rounds = {}
    for step in (None, 5):
        setup = prepare_run(job, "wait", None, StopFlag(), parts=RunParts())
        controller = ThresholdController(setup.worker.rules, JUDGE)
        worker = replace(setup.worker, sabotage_step=step)
        rounds[step] = played(replace(setup, controller=controller, worker=worker))

    losses = {
        step: [[env.signals.val_loss for env in item.envs if env] for item in done.steps]
        for step, done in rounds.items()
    }
    assert [row[0] for row in losses[5]] == [row[0] for row in losses[None]]
    differs = [one[1] != other[1] for one, other in zip(losses[5], losses[None], strict=True)]
    assert not any(differs[:5])
    assert any(differs)


def test_scrambled_seed_has_the_same_numbers_in_another_order() -> None:
    env = world_of().env
    grow(env, SLOTS[0], Stage.HOLDING)
    before = [value.detach().clone() for value in env.model.slot(SLOTS[0]).seed_parameters()]

    env.scramble(SLOTS[0])

    after = [value.detach() for value in env.model.slot(SLOTS[0]).seed_parameters()]
    pairs = list(zip(before, after, strict=True))
    assert all(torch.equal(a.flatten().sort()[0], b.flatten().sort()[0]) for a, b in pairs)
    assert any(not torch.equal(a, b) for a, b in pairs)


# --- Flipped evidence ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FLIPS)
def test_flipped_evidence_is_observed_as_if_it_had_been_measured(
    kind: str, checkpoint: Path
) -> None:
    inspector, setup = inspected(checkpoint)
    env = evidence_with_a_seed()
    feedback = [ActionFeedback(op=Op.GERMINATE, has_succeeded=True)]
    extractor = FeatureExtractor(setup.job.training.slots, STEPS)
    situation = Situation(
        round=0,
        step=3,
        observations=extractor.observe([env.signals], [env.reports], feedback),
        masks=ActionMasker(setup.worker.rules).masks([env.reports]),
        envs=(env,),
    )
    signals, reports = FLIPS[kind](env.signals, env.reports)
    expected = extractor.observe([signals], [reports], feedback).observations

    shown = inspector._with(situation, FLIPS[kind]).observations

    torch.testing.assert_close(shown, expected)
    assert not torch.equal(shown, situation.observations.observations)


def inspected(checkpoint: Path) -> tuple[InspectedPolicy, RunSetup]:
    loaded = load_run(checkpoint)
    setup = prepare_run(loaded.job, "ppo", loaded, StopFlag(), parts=RunParts())
    return InspectedPolicy.around(setup), setup


def evidence_with_a_seed() -> EnvEvidence:

    gradient = GradientReading(
        norm=1.0, ratio=0.5, health=0.9, has_vanishing=False, has_exploding=False
    )
    report = make_report(
        stage=Stage.BLENDING,
        contribution_pp=7.0,
        contribution_velocity_pp=1.0,
        gradient=gradient,
    )
    return evidence_of(0, (report,), make_signals(val_accuracy_pct=70.0, train_accuracy_pct=80.0))


def test_inspection_changes_no_decision(checkpoint: Path) -> None:
    inspector, setup = inspected(checkpoint)
    plain = replace(setup, controller=inspected(checkpoint)[1].controller)

    assert played(replace(setup, controller=inspector)).actions == played(plain).actions
    assert inspector.num_decisions > 0


def test_decisions_in_which_no_seed_can_be_pruned_do_not_count(checkpoint: Path) -> None:
    inspector, setup = inspected(checkpoint)
    rules = setup.worker.rules
    unprunable = msgspec.structs.replace(rules.lifecycle, min_prune_age_steps=10_000)
    never = msgspec.structs.replace(rules, lifecycle=unprunable)

    inspector.choose(situation_of(inspector, setup, never))
    assert inspector.num_decisions == 0

    inspector.choose(situation_of(inspector, setup, rules))
    assert inspector.num_decisions == setup.job.training.n_envs


def situation_of(inspector: InspectedPolicy, setup: RunSetup, rules: ActionRules) -> Situation:
    """Return the same env with a measured seed, as often as the setup has envs."""
    envs = (evidence_with_a_seed(),) * setup.job.training.n_envs
    signals, reports = [env.signals for env in envs], [env.reports for env in envs]
    return Situation(
        round=0,
        step=3,
        observations=inspector.extractor.observe(signals, reports, [ActionFeedback()] * len(envs)),
        masks=ActionMasker(rules).masks(reports),
        envs=envs,
    )


def test_probabilities_of_all_ops_sum_to_one(checkpoint: Path) -> None:
    report = inspect_policy(load_run(checkpoint), name="p", seeds=[1, 2], sabotage_step=4)

    for kind in FLIPS:
        rows = [shift for shift in report.shifts if shift.evidence == kind]
        assert [shift.op for shift in rows] == [op.name for op in Op]
        assert sum(shift.as_seen for shift in rows) == pytest.approx(1.0, abs=1e-5)
        assert sum(shift.shift for shift in rows) == pytest.approx(0.0, abs=1e-5)


def test_checkpoint_without_a_policy_cannot_be_inspected(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, command="wait", n_episodes=1)

    with pytest.raises(UsageError, match="which has no policy"):
        inspect_policy(load_run(last_checkpoint(run.run_dir)), name="w", seeds=[1], sabotage_step=1)


def test_command_writes_page_and_figures(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    arguments = ["inspect", str(checkpoint), "--seeds", "5", "--sabotage-step", "4"]

    assert esper_train([*arguments, "--html", str(page), "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert {row["evidence"] for row in report["shifts"]} == set(FLIPS)
    assert report["sabotage"]["first_step"] == 4
    assert "Plotly.react" in page.read_text()
    assert 'id="shifts"' in page.read_text()
    assert esper_train(arguments) == 0
    assert "pruned within 5 steps after sabotage from step 4 on" in capsys.readouterr().out
