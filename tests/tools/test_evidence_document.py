"""The evidence that is written down is what the kept reports say."""

import re
from pathlib import Path

import msgspec
import pytest
from tests.browser import needs_chromium
from tests.karn.comparisons import arm, around, comparison, contrast, learning
from tools.evidence.document import DOCUMENT, MISSING, command_of, document_of
from tools.evidence.pictures import take_pictures
from tools.evidence.reports import (
    FASHION,
    KNOWN,
    REPORTS,
    Kept,
    compact,
    keep_reports,
    read_calibration,
    read_inspections,
    read_kept,
)

from esper.leyline.comparison import ComparisonReport
from esper.leyline.errors import UnreadableFileError, UsageError

MAX_REPORT_BYTES = 300_000
MAX_PICTURE_BYTES = 150_000
BLANK = "".join(
    f"prose\n<!-- figures: {name} begin -->\nold\n<!-- figures: {name} end -->\n"
    for name in ("closed-loop", "claims", "digits", "training", "fashion")
)


@pytest.fixture
def report() -> ComparisonReport:
    return comparison(
        arm("ppo:/home/somebody/policy-1.pt,x/policy-2.pt", num_policies=2, is_on_front=True),
        arm("wait", num_fossils_measured=3, num_fossils_positive=2),
        preset=KNOWN,
        seeds=(5, 6, 7),
        contrasts=(
            contrast("ppo:/home/somebody/policy-1.pt,x/policy-2.pt", "wait", around(1 / 3)),
        ),
        learning=learning(),
    )


def kept(report: ComparisonReport) -> Kept:
    return Kept(date="2026-01-01", commit="abc", machine="a machine", report=compact(report))


def test_document_shows_the_figures_that_are_kept() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    calibration = read_calibration()
    assert calibration is not None
    shown = document_of(text, read_kept(), read_inspections(), calibration.report)
    assert text == shown, "run 'python -m tools.evidence --document'"


def test_pictures_of_the_document_are_there_and_small() -> None:
    names = re.findall(r"\]\((images/[^)]+)\)", DOCUMENT.read_text(encoding="utf-8"))
    sizes = {name: (DOCUMENT.parent / name).stat().st_size for name in names}
    assert {name: size for name, size in sizes.items() if size > MAX_PICTURE_BYTES} == {}


def test_kept_reports_are_small() -> None:
    assert sum(path.stat().st_size for path in REPORTS.glob("*.json")) <= MAX_REPORT_BYTES


def test_figures_stand_between_the_marks_and_nothing_else_changes(
    report: ComparisonReport,
) -> None:
    text = document_of(BLANK, {KNOWN: kept(report)})

    assert text.count("prose\n") == 5
    assert "old" not in text
    assert "| ppo - wait | 0.3 (-0.7 to 1.3) |" in text
    assert "| wait | 7 | 1.00 | - | 2.0 | 1.00 | 1.00 | 0.00 | 2 of 3 (66.7 %) |" in text
    assert "| 0000aaaa | 1 | 2 | Finished, the policy learns | 3 KL_SPIKE_DETECTED |" in text
    assert "| validation accuracy, % | 22.5 (15 to 30) | 22.5 (15 to 30) |" in text
    assert "| entropy: op | 0.8 (0.75 to 0.85) |" in text
    assert text.endswith(f"begin -->\n{MISSING}\n<!-- figures: fashion end -->\n")
    assert document_of(text, {KNOWN: kept(report)}) == text


def test_document_without_marks_is_refused() -> None:
    with pytest.raises(UsageError, match="figures: claims begin"):
        document_of("prose", {})


def test_command_makes_the_report_again(report: ComparisonReport) -> None:
    assert command_of(kept(report).report) == (
        "esper-train compare --preset digits_growth --envs 2 --episode-length 2 --seeds 5-7 \\\n"
        "  --arms ppo:policy-1.pt,policy-2.pt wait"
    )


def test_kept_report_names_no_path_of_a_machine(report: ComparisonReport) -> None:
    assert b"somebody" not in msgspec.json.encode(compact(report))
    assert compact(report).contrasts[0].final_pp.value == 0.33333


def test_report_is_kept_once(report: ComparisonReport, tmp_path: Path) -> None:
    (tmp_path / f"{KNOWN}.json").write_bytes(msgspec.json.encode(report))
    directory = tmp_path / "kept"

    assert [path.name for path in keep_reports(tmp_path, directory)] == [f"{KNOWN}.json"]
    assert list(keep_reports(tmp_path, directory)) == []

    found = read_kept(directory)
    assert found.keys() == {KNOWN}
    assert found[KNOWN].report == compact(report)


def test_file_that_is_no_report_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{FASHION}.json").write_bytes(b"{}")

    with pytest.raises(UnreadableFileError, match="not the report of a comparison"):
        list(keep_reports(tmp_path, tmp_path / "kept"))


@pytest.mark.browser
@needs_chromium
def test_every_picture_that_the_document_shows_is_taken(
    report: ComparisonReport, tmp_path: Path
) -> None:
    both = {KNOWN: kept(report), FASHION: kept(msgspec.structs.replace(report, learning=None))}
    taken = [path.name for path in take_pictures(both, tmp_path)]

    shown = re.findall(r"\]\(images/([^)]+)\)", document_of(BLANK, both))
    assert sorted(taken) == sorted(shown)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in taken)
