"""The quick form of the evidence: machinery, not claims."""

from pathlib import Path

import pytest

from tools import evidence


def test_quick_evidence_trains_compares_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert all(arm in told for arm in (*evidence.ARMS, "ppo:"))
    assert (tmp_path / "policy-1.pt").exists()
    assert "Plotly.newPlot" in (tmp_path / "digits_growth.html").read_text(encoding="utf-8")
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}

    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == runs
