"""The long walk runs from the command line."""

import pytest
from tools.soak.lifecycle import main


def test_soak_prints_how_far_it_walked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--transitions", "500", "--body-transitions", "50"]) == 0

    pure, body = capsys.readouterr().out.splitlines()
    assert pure.startswith("pure machine: 50")
    assert body.endswith("no illegal state, no leak")
