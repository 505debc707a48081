"""The summary that `--json` prints: totals of each round, growth by blueprint."""

from pathlib import Path

import msgspec
import pytest
from tests.builders.messages import batch_summary, make_episode
from tests.nissa.making import pruned

from esper.leyline.effects import effect_of
from esper.leyline.payloads import SeedGerminated
from esper.scripts.summary import summary_of
from esper.simic.telemetry.scoreboard import Scoreboard
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.run_result import TrainingResult

GERMINATED = SeedGerminated(
    slot_id="r0c0",
    seed_id="s",
    blueprint="norm",
    num_params=10,
    style="linear_add",
    tempo_steps=5,
    alpha_target=1.0,
)


def result_of(state: RunState, **changes: object) -> TrainingResult:
    facts: dict[str, object] = {
        "agent": None,
        "history": state.history,
        "state": state,
        "run_dir": Path("runs/one"),
        "traces_dir": None,
        "data_note": None,
    }
    return TrainingResult(**{**facts, **changes})  # type: ignore[arg-type]


def test_round_sums_fossils_and_averages_sizes_over_its_episodes() -> None:
    episodes = (
        make_episode(num_fossilized=2, param_ratio=1.5),
        make_episode(num_fossilized=1, param_ratio=2.0),
    )
    rounds = (
        batch_summary(40.0, round=0, episodes=episodes),
        batch_summary(None, round=1, episodes=episodes[:1]),
    )
    state = RunState(history=rounds, best_accuracy_pct=40.0, duration_s=12.5)

    summary = summary_of(result_of(state))

    assert [row.round for row in summary.rounds] == [0, 1]
    assert [row.fossilized for row in summary.rounds] == [3, 2]
    assert [row.param_ratio for row in summary.rounds] == [pytest.approx(1.75), 1.5]
    assert [row.mean_accuracy_pct for row in summary.rounds] == [40.0, None]
    assert (summary.best_accuracy_pct, summary.final_accuracy_pct) == (40.0, None)
    assert (summary.run_dir, summary.duration_s) == ("runs/one", 12.5)


def test_blueprints_are_those_of_the_scoreboard() -> None:
    effects = [effect_of(GERMINATED), effect_of(GERMINATED), effect_of(pruned())]
    summary = summary_of(result_of(RunState(scoreboard=Scoreboard().noting(effects))))

    [row] = summary.grown
    assert (row.blueprint, row.germinated, row.fossilized, row.pruned) == ("norm", 2, 0, 1)


def test_paths_are_text_so_that_the_summary_is_json() -> None:
    result = result_of(RunState(), traces_dir=Path("runs/one/traces"), data_note="synthetic")
    plain = msgspec.json.decode(msgspec.json.encode(summary_of(result)))
    assert (plain["traces_dir"], plain["data_note"]) == ("runs/one/traces", "synthetic")
