"""Operations as JSON: what cannot be written is refused, and nothing is lost."""

import math

import msgspec
import pytest
import torch
from torch import Tensor, nn

from esper.leyline.errors import UsageError
from esper.simic.exporting.graph import graph_of


class Filling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x > 0, -math.inf).to(torch.float64)


class WithoutGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.weight * 2
        return x * scale


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.ones(2, 3),))


def test_numbers_that_json_has_not_are_written_with_their_kind() -> None:
    graph, weights = graph_of(exported(Filling()))

    text = msgspec.json.encode(graph).decode()
    assert '{"float":"-inf"}' in text
    assert '{"torch":"float64"}' in text
    assert weights == {}


def test_weights_are_named_as_in_the_module() -> None:
    graph, weights = graph_of(exported(nn.Linear(3, 2)))

    assert set(weights) == {"weight", "bias"}
    assert set(graph.weights.values()) == set(weights)
    (operation,) = graph.operations
    assert operation.op == "aten.linear.default"
    assert graph.output == operation.name


def test_what_is_no_plain_operation_is_refused_with_a_way_on() -> None:
    with pytest.raises(UsageError, match="use --to torch-export"):
        graph_of(exported(WithoutGradient()))
