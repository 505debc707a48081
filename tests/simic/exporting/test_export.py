"""Exported networks compute what the original computes, in a process that has no Esper."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from tests.kasmina.bodies import SPECS, disturb, grown, plant
from torch import Tensor, nn

import esper
from esper.kasmina.blueprints import OPTIONAL_SEEDS, SEEDS
from esper.leyline.actions import Blueprint, Style, Topology
from esper.leyline.exporting import ExportFormat
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import CnnHostSpec, HostSpec, ModuleHostSpec, TransformerHostSpec
from esper.scripts.train import main
from esper.simic.exporting.formats import FORMATS
from esper.simic.training.checkpoints.grown import (
    GrownHeader,
    materialize_grown_state,
    save_grown,
)

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "export.md"
TITLES = {
    ExportFormat.TORCH_EXPORT: "torch.export",
    ExportFormat.ONNX: "ONNX",
    ExportFormat.SAFETENSORS: "safetensors",
}
NUM_SAMPLES = 5

# Three converters and the import of two runtimes take long on a busy machine.
pytestmark = pytest.mark.timeout(400)


class Foreign(nn.Module):
    """A network of somebody else, with batch norm, dropout and a change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(6, 8, 3, stride=2))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.body(self.stem(x)).mean(dim=(2, 3))))


FOREIGN = ModuleHostSpec(
    factory=f"{__name__}:Foreign", after=("stem", "body"), sample_shape=(3, 8, 8), num_classes=4
)
HOSTS: dict[str, HostSpec] = {
    # With a slot for each blueprint.
    "cnn": msgspec.structs.replace(SPECS[Topology.CNN], image_size=16, num_blocks=5, num_pools=4),
    "transformer": msgspec.structs.replace(
        SPECS[Topology.TRANSFORMER], num_layers=9, num_segments=9
    ),
    "foreign": FOREIGN,
}


def stored_inputs(spec: HostSpec) -> Tensor:
    """Return inputs as a data set stores them, as the type that an exported network takes."""
    source = torch.Generator().manual_seed(5)
    if isinstance(spec, TransformerHostSpec):
        return torch.randint(spec.vocab_size, (NUM_SAMPLES, spec.block_size), generator=source)
    assert isinstance(spec, CnnHostSpec | ModuleHostSpec)
    return torch.randint(256, (NUM_SAMPLES, *spec.sample_shape), generator=source).float()


def write_network(spec: HostSpec, path: Path, blueprints: list[str]) -> None:
    """Write a network with a seed in each slot, of every style in turn, away from the identity."""
    model = grown(spec)
    for index, slot in enumerate(model.all_slots()):
        style = list(Style)[index % len(Style)]
        stage = (Stage.FOSSILIZED, Stage.BLENDING)[index % 2]
        blueprint = blueprints[index % len(blueprints)]
        plant(slot, stage, blueprint=blueprint, style=style, seed_id=f"s{index}")
        disturb(slot, seed=index)
    with torch.no_grad():
        for name, buffer in model.host.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.3)
    inputs = stored_inputs(spec)
    has_pixels = inputs.is_floating_point()
    channels = inputs.shape[1]
    header = GrownHeader(
        task="mine",
        host=spec,
        slots=model.slot_config.slot_ids,
        lifecycle=LifecycleRules(),
        pixel_mean=(120.0,) * channels if has_pixels else None,
        pixel_std=(60.0,) * channels if has_pixels else None,
        input_shape=tuple(inputs.shape[1:]),
        takes_tokens=not has_pixels,
    )
    save_grown(materialize_grown_state(model), header, path)


@dataclass(frozen=True)
class Answers:
    """What was computed in a process without Esper, and what should have been."""

    modules: list[str]
    logits: dict[str, Tensor]
    """By format."""
    expected: Tensor
    """What the network itself computes."""


def blocks() -> dict[ExportFormat, str]:
    """Return the documented code that reads each format."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found = {}
    for form, title in TITLES.items():
        section = re.search(rf"^## {title}\n.*?```python\n(.*?)```", text, re.M | re.S)
        assert section is not None, title
        found[form] = section[1]
    return found


def reader() -> str:
    """Return a program that runs the documented code of each format in the directory of each host.

    One for all of them: most of its time goes into importing the libraries.
    """
    code = {form.value: block for form, block in blocks().items()}
    return f"""
import importlib.util, json, os, sys
import torch
assert importlib.util.find_spec("esper") is None
for host in {list(HOSTS)!r}:
    os.chdir(host)
    answers = {{}}
    for form, block in {code!r}.items():
        scope = {{"images": torch.load("inputs.pt")}}
        exec(block, scope)
        answers[form] = torch.as_tensor(scope["logits"]).detach()
    torch.save(answers, "answers.pt")
    os.chdir("..")
print(json.dumps(sorted(sys.modules)))
"""


def export_host(spec: HostSpec, folder: Path) -> Tensor:
    """Export a network in every format; return what it computes itself."""
    path = folder / "grown.pt"
    known = (*SEEDS[spec.topology], *OPTIONAL_SEEDS[spec.topology])
    blueprints = [each for each in known if each is not Blueprint.NOOP]
    assert spec is FOREIGN or len(spec.slot_ids) == len(blueprints)
    write_network(spec, path, blueprints)
    torch.save(stored_inputs(spec), folder / "inputs.pt")
    for form in ExportFormat:
        assert main(["export", str(path), "--to", form.value]) == 0
    with torch.no_grad():
        return esper.load_grown(path)(stored_inputs(spec))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    """Export every host; run the documented code without Esper on the path."""
    folder, expected = tmp_path_factory.mktemp("exported"), {}
    for host, spec in HOSTS.items():
        (folder / host).mkdir()
        expected[host] = export_host(spec, folder / host)
    # Without `site`, which would put the source tree on the path.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", reader()],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    return {
        host: Answers(modules, torch.load(folder / host / "answers.pt"), expected[host])
        for host in HOSTS
    }


@pytest.mark.parametrize("form", ExportFormat)
@pytest.mark.parametrize("host", HOSTS)
def test_exported_network_computes_the_same_without_esper(
    host: str, form: ExportFormat, answers: dict[str, Answers]
) -> None:
    found = answers[host]
    assert not [name for name in found.modules if name.partition(".")[0] == "esper"]
    logits, expected = found.logits[form.value], found.expected
    assert logits.shape == expected.shape
    assert (logits - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert expected.std() > 1e-2, "logits that are all alike show nothing"


def test_every_format_has_a_file_name_of_its_own() -> None:
    assert FORMATS.keys() == set(ExportFormat)
    assert len({form.suffix for form in FORMATS.values()}) == len(FORMATS)
