"""The bench finds its rows and says what is wrong with a call."""

import io
import json
import math
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from tests.kasmina.bodies import disturb, generator
from tools.bench.__main__ import main
from tools.bench.bare_loop import BareLoop, Order
from tools.bench.bare_loop import main as run_bare_loop
from tools.bench.counterfactual import grown_model, tiled_forward
from tools.bench.plots import HEIGHT, PLOTS, WIDTH, drawn
from tools.bench.replay import EnvStep, Replay, recorded_run
from tools.bench.results import (
    DOCUMENT,
    latest_results,
    refresh_document,
    rendered,
    write_results,
)
from tools.bench.rows import ROWS, Point, Row, load_all_benches, ordered_names, quick_names
from tools.bench.training import note_lags, worker_cpu_s
from tools.bench.workloads import Workload, run_workload
from torch import Tensor

from esper.kasmina.counterfactual import NOTHING_OFF, PrefixWalk, full_factorial
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.attribution import Ablation

torch.set_num_threads(1)
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def test_rows_of_the_bus_are_found() -> None:
    load_all_benches()
    assert {"E1", "E2", "E5", "E6", "E7", "leyline import"} <= set(ROWS)


def test_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["E99"])
    assert "no row E99; there are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_at_least", "measured", "is_met"), [(False, 2, False), (True, 2, True)]
)
def test_target_is_an_upper_bound_unless_said_otherwise(
    is_at_least: bool, measured: float, is_met: bool
) -> None:
    row = Row(name="r", measured=measured, target=1, unit="s", is_at_least=is_at_least)
    assert row.is_met is is_met


def test_rows_of_training_are_found() -> None:
    load_all_benches()
    assert {f"T{number}" for number in range(1, 12)} | {"digits", "loop lag"} <= set(ROWS)


def test_quick_form_has_every_row_of_the_goals_and_leaves_out_how_cost_grows() -> None:
    load_all_benches()
    left_out = set(ordered_names()) - set(quick_names())
    assert left_out == {
        *("G control", "G levels", "G logs", "G rounds", "G seeds", "G server"),
        *("G slots", "G subscribers", "G workers", "imports"),
    }


def test_rows_of_workers_are_found() -> None:
    load_all_benches()
    names = ordered_names()
    assert [name for name in names if name.startswith("W")] == [f"W{n}" for n in range(1, 7)]
    assert names.index("digits") < names.index("W1") < names.index("W6") < names.index("E1")


def measured_quickly(*rows: str) -> list[str]:
    """Return the lines of the quick form of some rows, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench", "--quick", *rows],
        cwd=DOCUMENT.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("W")]


@pytest.mark.timeout(600)
def test_tasks_of_the_bench_exist_in_worker_processes_and_a_lost_worker_is_timed() -> None:
    *waiting_and_growing, replayed = measured_quickly("W2", "W5")
    assert [line.partition(" / ")[0] for line in waiting_and_growing] == [
        *("W2 c64, processes, wait", "W2 c64, processes, ppo")
    ]
    assert all("ceiling" in line for line in waiting_and_growing)
    assert replayed.startswith("W5 replay to step 3 / first time")
    assert float(replayed.split("digits")[1].split()[0]) > 0


def test_run_is_watched_while_it_goes_on() -> None:
    workload = Workload(name="tiny", task="bench_growth", num_envs=1, num_steps=1)
    lags_s: list[float] = []
    run_workload(workload, command="wait", monitors=[partial(note_lags, lags_s)])

    assert worker_cpu_s(workload, command="wait", num_subscribers=1) > 0
    assert lags_s


def test_figure_without_a_target_is_never_missed() -> None:
    row = Row(name="r", measured=2, unit="s")
    assert row.is_met
    assert row.bound == ""


def test_figures_are_kept_and_reach_the_document(tmp_path: Path) -> None:
    rows = [
        Row(name="met", measured=0.5, target=1.0, unit="ratio", note="on two"),
        Row(name="short of it", measured=0.5, target=1.0, unit="ratio", is_at_least=True),
        Row(name="impossible here", measured=math.nan, target=1.0, unit="ratio"),
        Row(name="growing", measured=3.0, unit="ms"),
    ]
    path = write_results(rows, is_quick=True, took_s=61.0, directory=tmp_path / "results")
    stored = json.loads(path.read_text())
    assert [row["is_met"] for row in stored["rows"]] == [True, False, False, True]
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}old\n{END}after\n")
    refresh_document(document, tmp_path / "results")
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}Measured on {stored['date']}")
    assert "quick form, complete run in 1 minutes" in text
    assert text.endswith(f"{END}after\n")
    assert "| met | 0.5 | ≤ 1 | ratio |  | on two |" in text
    assert "| short of it | 0.5 | ≥ 1 | ratio | missed |  |" in text
    assert "| impossible here | not measured | ≤ 1 | ratio | missed |  |" in text
    assert "| growing | 3 | ms |  |" in text


def test_plots_have_a_point_for_every_figure_and_are_drawn_beside_the_document(
    tmp_path: Path,
) -> None:
    costs = {10: 0.1, 100: 0.4, 1_000: 3.1}
    rows = [
        Row(name=f"{name} {x}", measured=factor * y, unit="s", point=Point("logs", x, name))
        for name, factor in (("count", 1.0), ("report", 20.0))
        for x, y in costs.items()
    ]
    write_results(rows, is_quick=False, took_s=1.0, directory=tmp_path / "results")
    document = tmp_path / "performance.md"
    document.write_text(f"{BEGIN}{END}")
    refresh_document(document, tmp_path / "results")

    assert "![Reading longer logs](images/growth-logs.svg)" in document.read_text()
    (file,) = (tmp_path / "images").iterdir()
    drawing = ElementTree.parse(file).getroot()
    circles = [item.attrib for item in drawing.iter() if item.tag.endswith("circle")]
    places = [(float(item["cx"]), float(item["cy"])) for item in circles]
    assert len(places) == len(rows)
    for values in (places[:3], places[3:]):
        assert [x for x, _ in values] == sorted(x for x, _ in values)
        assert [y for _, y in values] == sorted((y for _, y in values), reverse=True)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    texts = {item.text for item in drawing.iter() if item.tag.endswith("text")}
    assert {"10", "100", "1,000", "count", "report", "seconds"} <= texts


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0], [0.03, 0.04], [1.0, 1e6]])
@pytest.mark.parametrize("name", sorted(PLOTS))
def test_plot_holds_whatever_is_measured(name: str, values: list[float]) -> None:
    if PLOTS[name].is_y_log and 0.0 in values:
        return  # no cost is 0
    drawing = drawn(PLOTS[name], {"a < b": list(enumerate(values, 1))})
    circles = [
        item.attrib
        for item in ElementTree.fromstring(drawing).iter()
        if item.tag.endswith("circle")
    ]
    assert len(circles) == len(values)
    assert all(0 < float(item["cy"]) < HEIGHT for item in circles)


def figures(directory: Path, **measured: float) -> dict[str, float]:
    """Write figures down and return what is known of them afterwards."""
    rows = [Row(name=name, measured=value, unit="s") for name, value in measured.items()]
    is_whole = len(rows) > 1
    write_results(
        rows,
        is_quick=False,
        took_s=1.0 if is_whole else None,
        directory=directory,
        date="2030-01-02",
    )
    [file] = directory.glob("2030-01-02-*.json")
    return {row["name"]: row["measured"] for row in json.loads(file.read_text())["rows"]}


def test_later_run_of_a_day_replaces_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "2030-01-01-abc.json").write_text("{}")
    (tmp_path / "2030-01-02-fff.json").write_text('{"is_quick": false, "rows": [], "took_s": 1}')
    assert figures(tmp_path, one=1.0, two=2.0) == {"one": 1.0, "two": 2.0}
    assert figures(tmp_path, two=4.0, three=3.0) == {"two": 4.0, "three": 3.0}
    assert latest_results(tmp_path)["date"] == "2030-01-02"
    assert len(list(tmp_path.iterdir())) == 2


def test_row_measured_again_takes_its_place_among_the_others_of_the_day(tmp_path: Path) -> None:
    figures(tmp_path, one=1.0, two=2.0)
    assert list(figures(tmp_path, one=5.0).items()) == [("one", 5.0), ("two", 2.0)]
    assert latest_results(tmp_path)["took_s"] == 1.0


def test_benches_come_in_the_order_of_the_goals() -> None:
    load_all_benches()
    names = ordered_names()
    assert sorted(names) == sorted(ROWS)
    assert names[:10] == [f"T{number}" for number in range(1, 11)]
    assert names.index("E1") < names.index("E8") < names.index("V1") < names.index("G slots")


def test_document_shows_the_newest_figures() -> None:
    assert rendered(latest_results()) in DOCUMENT.read_text(encoding="utf-8")


def test_bare_loop_trains_as_a_run_in_which_nothing_grows() -> None:
    workload = Workload(name="digits", task="digits", num_envs=2, num_steps=2)
    result = run_workload(workload, command="wait", lanes=1)
    losses = [record.final_loss for record in result.history[0].episodes]
    assert BareLoop(workload).run() == pytest.approx(statistics.fmean(losses), rel=1e-4)


def test_bare_loop_trains_what_a_run_has_grown() -> None:
    """Replayed seeds start from the same numbers, so the networks end up the same."""
    hasty = {"lifecycle": {"min_training_steps": 1}}
    workload = Workload(name="digits", task="digits", num_envs=1, num_steps=5, settings=hasty)
    result, replay = recorded_run(workload, command="periodic", lanes=2)
    assert max(len(item.ablations) for item in replay.steps) > 1
    losses = [record.final_loss for record in result.history[0].episodes]
    grown, bare = BareLoop(workload, replay=replay).run(), BareLoop(workload).run()
    assert grown == pytest.approx(statistics.fmean(losses), rel=1e-4)
    assert bare != pytest.approx(grown, rel=1e-3)


def test_bare_loop_looks_at_every_configuration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(name="digits", task="digits", num_envs=1, num_steps=2)
    seen: list[Ablation] = []
    plain = MorphogeneticModel.forward

    def forward(model: MorphogeneticModel, x: Tensor, ablation: Ablation = NOTHING_OFF) -> Tensor:
        if not model.training:
            seen.append(ablation)
        return plain(model, x, ablation)

    monkeypatch.setattr(MorphogeneticModel, "forward", forward)
    asked = (NOTHING_OFF, Ablation(frozenset({"r0c0"})))
    place = {"round": 0, "env_id": 0}
    steps = (EnvStep(**place, step=0), EnvStep(**place, step=1, ablations=asked))
    BareLoop(workload, replay=Replay(steps)).run()
    num_batches = len(seen) // 3
    assert seen == [ablation for ablation in (NOTHING_OFF, *asked) for _ in range(num_batches)]


def test_bare_loop_answers_each_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "replay.json"
    Replay((EnvStep(round=0, env_id=0, step=0),)).write(path)
    order = Order(workload="digits", num_steps=1, env_ids=(0,), replay_path=str(path))
    monkeypatch.setattr("sys.stdin", io.StringIO(msgspec.json.encode(order).decode() + "\n\n"))
    assert run_bare_loop() == 0
    ready, seconds = capsys.readouterr().out.split()
    assert ready == "ready"
    assert float(seconds) > 0


def test_tiling_the_batch_gives_the_same_answers() -> None:
    model = grown_model(2)
    for slot in list(model.all_slots())[:2]:
        disturb(slot)
    ablations = full_factorial(model.blended_slots())
    blended = [model.slot(slot_id) for slot_id in model.blended_slots()]
    x = torch.randn((2, 3, 32, 32), generator=generator())

    with torch.inference_mode():
        tiled = tiled_forward(model, x, ablations)
        # Tiles are one batch, so that their norms can only use the running statistics.
        shared = PrefixWalk(model.host, blended, ablations).run(x).logits

    for left, right in zip(tiled, shared, strict=True):
        torch.testing.assert_close(left, right)
