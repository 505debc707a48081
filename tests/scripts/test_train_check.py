"""`esper-train check` on the CPU: what it prints, and that it finds a machine that errs."""

import json
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.leyline.errors import ExitCode
from esper.scripts.train import main
from esper.simic.evaluation import machine_check


def test_a_sound_machine_passes_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--device", "cpu", "--json"])

    rows = json.loads(capsys.readouterr().out)
    assert code == ExitCode.OK, rows
    results = {row["name"]: row["is_passed"] for row in rows}
    assert results["device"] is None
    assert results["transfers behind fences"] is True
    assert results["same bits again"] is True
    assert results["same bits on 2 processes"] is True
    assert sum(name.startswith("same bits") for name in results) == 3


def test_a_machine_that_errs_fails_with_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = count()

    def unreliable(*_: Any) -> machine_check._Outcome:
        return machine_check._Outcome(digest=f"{next(numbers):064}", seconds=1.0)

    monkeypatch.setattr(machine_check, "_run", unreliable)
    assert main(["check", "--device", "cpu"]) == ExitCode.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert sum("FAILED" in line for line in lines) == 3
    assert any(line.startswith("transfers behind fences") and "ok" in line for line in lines)


def test_transfers_that_arrive_too_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(tensor: Tensor, device: torch.device) -> Tensor:
        return torch.zeros_like(tensor)

    monkeypatch.setattr(machine_check, "transfer_to", early)
    row = machine_check._check_fences(torch.device("cpu"))
    assert row.is_passed is False
    assert row.detail == "64 of 64 arrived too late"


def test_a_device_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "mps"]) == ExitCode.USAGE
    assert "Metal" in capsys.readouterr().err
