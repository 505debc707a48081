"""`esper-train compare` through its command line."""

from pathlib import Path

import msgspec
import pytest
from tests.simic.training.runs import TINY, register_tiny_tasks

from esper.leyline.comparison import ComparisonReport
from esper.leyline.errors import UsageError
from esper.scripts.train import main
from esper.scripts.train_compare import seeds_from


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    register_tiny_tasks()
    out = str(tmp_path / "runs")
    return ["compare", "--task", TINY, "--arms", "wait", "random", "--seeds", "3-4", "--out", out]


def test_report_is_printed_as_a_table_and_written_as_a_page(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"

    assert main([*arguments, "--html", str(page)]) == 0

    told = capsys.readouterr()
    assert "wait - random" in told.out
    assert "seed 3  wait" in told.err
    assert "wait - random" in page.read_text(encoding="utf-8")


def test_json_has_stdout_to_itself(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 0

    report = msgspec.json.decode(capsys.readouterr().out, type=ComparisonReport)
    assert [arm.arm for arm in report.arms] == ["wait", "random"]
    assert report.seeds == (3, 4)


def test_quiet_comparison_tells_only_its_result(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_page_that_cannot_be_written_is_one_sentence(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--html", str(tmp_path / "none" / "report.html")]) == 2
    assert "cannot write the report" in capsys.readouterr().err


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_from(["7", "10-12"]) == [7, 10, 11, 12]


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1-x", "1.5"])
def test_seeds_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a seed or a range"):
        seeds_from([text])
