"""A grown network comes back from its file as the network that it was."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.builders.tiny_runs import tiny_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tests.kasmina.bodies import BLUEPRINT, CNN, SPECS, disturb, grown, inputs, plant
from tests.kasmina.seeds import CAUSE
from torch import Tensor, nn

import esper
from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import Ramp
from esper.leyline.actions import Style, Topology
from esper.leyline.errors import ExitCode, RunFailedError, UnreadableFileError
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import HostSpec
from esper.runtime import tasks
from esper.runtime.tasks import RegisteredTask, TaskRegistry, registered_task
from esper.simic.training.assembly import worker_assembly
from esper.simic.training.checkpoints.grown import (
    GROWN_FILE,
    GrownHeader,
    materialize_grown_state,
    read_grown_header,
    save_grown,
)
from esper.simic.training.env_work import TrainingWork


def model_in(stages: tuple[Stage | None, ...], spec: HostSpec, style: Style) -> MorphogeneticModel:
    """Return a model whose slots hold seeds in these stages; None for an empty slot."""
    model = grown(spec)
    for number, (slot, stage) in enumerate(zip(model.all_slots(), stages, strict=False)):
        if stage is not None:
            blueprint = BLUEPRINT[spec.topology]
            plant(slot, stage, blueprint=blueprint, style=style, seed_id=f"s{number}")
            disturb(slot, seed=number)
    return model.eval()


def header_for(model: MorphogeneticModel, spec: HostSpec | None) -> GrownHeader:
    return GrownHeader(
        task="mine", host=spec, slots=model.slot_config.slot_ids, lifecycle=LifecycleRules()
    )


def written(model: MorphogeneticModel, spec: HostSpec, path: Path) -> Path:
    save_grown(materialize_grown_state(model), header_for(model, spec), path)
    return path


@pytest.mark.parametrize("topology", list(Topology))
@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize(
    "stages",
    [
        (None, None, None),
        (Stage.FOSSILIZED, Stage.BLENDING, Stage.HOLDING),
        (Stage.TRAINING, Stage.FOSSILIZED, Stage.GERMINATED),
        (Stage.PRUNED, None, Stage.BLENDING),
    ],
)
def test_loaded_network_computes_the_same_bits(
    topology: Topology, style: Style, stages: tuple[Stage | None, ...], tmp_path: Path
) -> None:
    spec = SPECS[topology]
    model = model_in(stages, spec, style)
    x = inputs(spec)

    loaded = esper.load_grown(written(model, spec, tmp_path / "grown.pt"))

    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_loaded_network_is_an_ordinary_module(tmp_path: Path) -> None:
    spec = SPECS[Topology.TRANSFORMER]
    model = model_in((Stage.FOSSILIZED,), spec, Style.SIGMOID_ADD)
    loaded = esper.load_grown(str(written(model, spec, tmp_path / "grown.pt")))

    assert isinstance(loaded, nn.Module)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    twin = copy.deepcopy(loaded)
    twin.load_state_dict(loaded.state_dict())
    loaded.train()(inputs(spec)).sum().backward()
    gradients = [parameter.grad for parameter in loaded.parameters()]
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


def test_seed_that_was_being_removed_can_be_trained_too(tmp_path: Path) -> None:
    model = model_in((Stage.BLENDING,), CNN, Style.SIGMOID_ADD)
    (slot, *_) = model.all_slots()
    assert slot.schedule_prune(Ramp(num_steps=3), CAUSE).succeeded
    assert not any(parameter.requires_grad for parameter in slot.seed_parameters())

    loaded = esper.load_grown(written(model, CNN, tmp_path / "grown.pt"))

    assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_stored_pixels_are_standardized_per_channel(dtype: torch.dtype, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(CNN, in_channels=2)
    model = model_in((Stage.FOSSILIZED,), spec, Style.SIGMOID_ADD)
    header = msgspec.structs.replace(
        header_for(model, spec), pixel_mean=(10.0, 100.0), pixel_std=(2.0, 50.0)
    )
    save_grown(materialize_grown_state(model), header, tmp_path / "grown.pt")
    pixels = torch.randint(256, (4, 2, 8, 8), generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor(header.pixel_mean), torch.tensor(header.pixel_std)
    expected = (pixels - mean[:, None, None]) / std[:, None, None]

    loaded = esper.load_grown(tmp_path / "grown.pt")

    torch.testing.assert_close(loaded.preprocess(pixels.to(dtype)), expected)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels.to(dtype)), model(expected))


def test_bytes_of_text_are_taken_as_they_are_stored(tmp_path: Path) -> None:
    spec = SPECS[Topology.TRANSFORMER]
    model = model_in((Stage.FOSSILIZED,), spec, Style.SIGMOID_ADD)
    loaded = esper.load_grown(written(model, spec, tmp_path / "grown.pt"))

    with torch.no_grad():
        assert torch.equal(loaded(inputs(spec).to(torch.uint8)), model(inputs(spec)))


def test_seeds_that_take_no_part_stay_behind(tmp_path: Path) -> None:
    model = model_in((Stage.TRAINING, Stage.FOSSILIZED, Stage.GERMINATED), CNN, Style.SIGMOID_ADD)
    first, second, third = model.slot_config.slot_ids[:3]

    loaded = esper.load_grown(written(model, CNN, tmp_path / "grown.pt"))

    names = loaded.model.state_dict().keys()
    assert any(name.startswith(f"slots.{second}.") for name in names)
    assert not any(name.startswith((f"slots.{first}.", f"slots.{third}.")) for name in names)


def test_copied_state_does_not_follow_later_training() -> None:
    model = model_in((Stage.FOSSILIZED,), CNN, Style.SIGMOID_ADD)
    state = materialize_grown_state(model)
    before = {name: tensor.clone() for name, tensor in state["weights"].items()}

    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0

    assert all(torch.equal(state["weights"][name], tensor) for name, tensor in before.items())


def own_host(spec: object, generator: torch.Generator) -> nn.Module:
    return build_host(CNN, generator)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> TaskRegistry:
    registry = TaskRegistry(find_plugins=lambda: ())
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    return registry


def test_host_of_somebodys_own_making_is_built_by_their_task(
    registry: TaskRegistry, tmp_path: Path
) -> None:
    model = model_in((Stage.FOSSILIZED,), CNN, Style.SIGMOID_ADD)
    path = tmp_path / "grown.pt"
    save_grown(materialize_grown_state(model), header_for(model, None), path)
    spec = msgspec.structs.replace(registered_task("digits").spec, name="mine")
    registry.register(RegisteredTask(spec=spec, load=_no_data, build_host=own_host))

    loaded = esper.load_grown(path)

    with torch.no_grad():
        assert torch.equal(loaded(inputs()), model(inputs()))


def _no_data(*_: object) -> Any:
    raise AssertionError("data must not be loaded")


def test_host_that_cannot_be_built_here_is_refused_with_its_task(
    registry: TaskRegistry, tmp_path: Path
) -> None:
    model = model_in((), CNN, Style.SIGMOID_ADD)
    path = tmp_path / "grown.pt"
    save_grown(materialize_grown_state(model), header_for(model, None), path)

    with pytest.raises(UnreadableFileError, match=r"task 'mine'.*register_task") as caught:
        esper.load_grown(path)

    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("contents", [{}, {"version": 2, "header": {}, "model": {}}, [1]])
def test_file_of_something_else_is_refused(contents: object, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(contents, path)

    with pytest.raises(UnreadableFileError, match=r"other\.pt: not a grown network of Esper"):
        esper.load_grown(path)


def test_grown_network_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "future.pt"
    torch.save({"version": 99, "header": {}, "model": {}}, path)

    with pytest.raises(
        UnreadableFileError,
        match=r"another release of Esper \(version 99\), and this one reads version 2; grow",
    ):
        esper.load_grown(path)


def test_missing_directory_is_a_failed_run_with_the_path(tmp_path: Path) -> None:
    model = model_in((), CNN, Style.SIGMOID_ADD)

    with pytest.raises(RunFailedError, match="nowhere"):
        written(model, CNN, tmp_path / "nowhere" / "grown.pt")


class _Remembering(TrainingWork):
    """Remembers what every network answered when the last validation of its round was over."""

    answers: dict[tuple[int, int], Tensor]
    probe: Tensor

    def validate(self, env: Any, step: int, beat: Any) -> Any:
        evidence = super().validate(env, step, beat)
        if step == self.context.config.max_epochs - 1:
            with torch.no_grad():
                self.answers[env.round_index, env.env_idx] = env.model(self.probe)
        return evidence


@pytest.mark.parametrize("task", [TINY, TINY_LM])
def test_run_leaves_the_network_of_its_best_env(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = torch.randn(5, 1, 8, 8) if task == TINY else torch.randint(16, (5, 8))
    work = type("Remembering", (_Remembering,), {"answers": {}, "probe": probe})
    monkeypatch.setattr(worker_assembly, "TrainingWork", work)
    result = tiny_run(tmp_path, task=task, n_episodes=3)
    episodes = [record for summary in result.history for record in summary.episodes]
    best = max(
        episodes,
        key=lambda record: (
            -(record.final_loss or 0.0) if task == TINY_LM else record.final_accuracy_pct or 0.0,
            -record.episode_id,
        ),
    )

    loaded = esper.load_grown(result.run_dir / GROWN_FILE)

    with torch.no_grad():
        assert torch.equal(loaded(probe), work.answers[best.round, best.env_id])
    assert read_grown_header(result.run_dir / GROWN_FILE).task == task
