"""A report is one file that holds the whole run and names nothing outside itself."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.karn.runs import MANIFEST, write_run
from tests.karn.story import Story

from esper.karn.report.run_report import write_report
from esper.leyline.errors import UsageError
from esper.nissa.analysis.baseline_store import capture, write_baseline

STORY = Story(num_rounds=2, num_steps=6)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", STORY.lines())


def written(run_dir: Path, baseline: Path | None = None) -> str:
    output = run_dir.parent / "report.html"
    write_report(run_dir, output, baseline)
    return output.read_text(encoding="utf-8")


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="embedded-view">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_report_holds_every_round_env_and_detail(run_dir: Path) -> None:
    data = embedded(written(run_dir))
    assert len(data["view"]["rounds"]) == STORY.num_rounds
    assert len(data["view"]["envs"]) == len(data["details"]) == STORY.num_envs
    assert data["manifest"]["run_id"] == MANIFEST.run_id


def test_report_loads_nothing_from_elsewhere(run_dir: Path) -> None:
    page = written(run_dir)
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?!data:)', page) == []


def test_text_of_a_run_cannot_leave_its_place(run_dir: Path) -> None:
    page = written(run_dir)
    assert "<script>document.title" not in page
    alarms = embedded(page)["view"]["alarms"]
    assert any("<script>document.title" in alarm["text"] for alarm in alarms)


def test_run_that_is_still_going_has_a_report_too(tmp_path: Path) -> None:
    lines = list(STORY.lines())[:50]
    data = embedded(written(write_run(tmp_path / "run", lines)))
    assert data["view"]["progress"]["status"] == "running"
    assert data["view"]["verdict"]["alive"] == "live"


def test_run_without_a_manifest_has_a_report_too(run_dir: Path) -> None:
    (run_dir / "run.json").unlink()
    assert embedded(written(run_dir))["manifest"] is None


def test_report_says_that_nothing_was_compared(run_dir: Path) -> None:
    assert embedded(written(run_dir))["baseline"].startswith("Not compared")


def test_report_names_the_baseline_it_equals(run_dir: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    write_baseline(capture(run_dir), baseline)
    assert embedded(written(run_dir, baseline))["baseline"].startswith("Same as the baseline")


def test_report_names_the_counts_that_differ_from_the_baseline(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    lines = [line for line in STORY.lines() if b'"SEED_GATE_EVALUATED"' not in line]
    write_baseline(capture(write_run(tmp_path / "other", lines)), baseline)
    run_dir = write_run(tmp_path / "run", STORY.lines())
    verdict = embedded(written(run_dir, baseline))["baseline"]
    assert verdict.startswith("Differs from the baseline")
    assert "SEED_GATE_EVALUATED" in verdict


def test_output_that_cannot_be_written_is_one_sentence(run_dir: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the report"):
        write_report(run_dir, run_dir / "no such directory" / "report.html")


def test_policy_allows_exactly_the_scripts_of_the_report(run_dir: Path) -> None:
    page = written(run_dir)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    directives = {words[0]: words[1:] for words in map(str.split, policy.split(";"))}
    inline = re.findall(r"<script(?: type=\"(?:importmap|module)\")?>(.*?)</script>", page, re.S)

    assert directives["default-src"] == ["'none'"]
    assert len(inline) == 3
    assert set(directives["script-src"]) == {*map(digest_source, inline), "data:"}
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    assert digest_source(style) in directives["style-src"]


def digest_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
