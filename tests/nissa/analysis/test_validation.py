"""`validate` finds every kind of damage and nothing in a whole run."""

import math
from pathlib import Path

import msgspec
import pytest
from tests.nissa.analysis.test_run_profile import index_of
from tests.nissa.fake_run import FakeRun, write_log, write_run

from esper.leyline.errors import UnreadableFileError
from esper.nissa.analysis.validation import Validation, validate_run
from esper.nissa.storage.blocks import checksum_path, read_records
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import open_journal

SHIFTED_DIGITS = str.maketrans("0123456789", "1234567890")


def kinds(validation: Validation) -> set[str]:
    return set(validation.num_findings)


def run_of(tmp_path: Path, lines: list[bytes]) -> Path:
    write_run(tmp_path / "run", lines)
    return tmp_path / "run"


@pytest.mark.parametrize("shape", [FakeRun(), FakeRun(failed_env=1, skipped_round=0)])
def test_whole_run_is_valid(shape: FakeRun, tmp_path: Path) -> None:
    validation = validate_run(shape.write(tmp_path))

    assert validation.is_valid
    assert validation.num_events == len(list(shape.lines()))
    assert (validation.num_blocks, validation.num_uncovered_bytes) == (1, 0)


@pytest.mark.parametrize("offset", [0, 5000, 40_000, -10])
def test_flipped_bit_is_found_by_its_block(offset: int, tmp_path: Path) -> None:
    log = FakeRun().write(tmp_path) / "events.jsonl"
    data = bytearray(log.read_bytes())
    data[offset] ^= 1
    log.write_bytes(data)

    assert "crc" in kinds(validate_run(log.parent))


def test_every_block_is_checked(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    write_log(run / "events.jsonl", FakeRun().lines(), block_lines=10)

    assert validate_run(run).num_blocks == math.ceil(len(list(FakeRun().lines())) / 10)
    rows = (run / "events.crc").read_text().splitlines(keepends=True)
    (run / "events.crc").write_text("".join((*rows[:3], *rows[4:])))
    assert validate_run(run).num_findings == {"crc": 1}


@pytest.mark.parametrize("row", ["1 2 3\n", "a b c d e\n", "0 0 0 0 00000000\n", "é\n"])
def test_crc_file_with_nonsense_is_reported(row: str, tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    (run / "events.crc").write_text(row, encoding="utf-8")

    assert kinds(validate_run(run)) == {"crc"}


def test_checksum_in_another_spelling_is_reported(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    rows = (run / "events.crc").read_text()
    assert rows.upper() != rows, "no checksum of this run has a letter"
    (run / "events.crc").write_text(rows.upper())

    assert kinds(validate_run(run)) == {"crc"}


def test_last_block_with_a_wrong_number_of_events_is_reported_and_not_opened(
    tmp_path: Path,
) -> None:
    run = FakeRun().write(tmp_path)
    *rows, last = (run / "events.crc").read_text().splitlines(keepends=True)
    start, end, first_seq, last_seq, crc = last.split(" ")[:5]
    wrong = f"{start} {end} {first_seq} {int(last_seq) + 1} {crc}\n"
    (run / "events.crc").write_text("".join((*rows, wrong)))

    assert kinds(validate_run(run)) == {"crc"}
    with pytest.raises(UnreadableFileError, match="is damaged"):
        open_journal(run / "events.jsonl", files=FileSystem(), has_checksums=True)


@pytest.mark.parametrize("name", ["types", "envs", "severities"])
def test_wrong_counts_beside_an_intact_block_are_reported(name: str, tmp_path: Path) -> None:
    log = FakeRun().write(tmp_path) / "events.jsonl"
    first, *others = read_records(checksum_path(log), log.stat().st_size)
    assert first.facts is not None
    text = getattr(first.facts, name)
    facts = msgspec.structs.replace(first.facts, **{name: text.translate(SHIFTED_DIGITS)})
    records = [msgspec.structs.replace(first, facts=facts), *others]
    checksum_path(log).write_bytes(b"".join(record.line() for record in records))

    assert validate_run(log.parent).num_findings == {"crc": 1}


def test_damaged_block_says_nothing_about_those_behind_it(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    write_log(run / "events.jsonl", FakeRun().lines(), block_lines=10)
    data = bytearray((run / "events.jsonl").read_bytes())
    data[-100] ^= 1
    data[data.index(b'"ts":') + 6] ^= 1
    (run / "events.jsonl").write_bytes(data)

    assert validate_run(run).num_findings["crc"] == 2


def test_torn_last_row_of_the_crc_file_leaves_a_tail_uncovered(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    write_log(run / "events.jsonl", FakeRun().lines(), block_lines=100)
    crc = run / "events.crc"
    crc.write_text(crc.read_text()[:-3])

    validation = validate_run(run)

    assert validation.is_valid
    assert validation.num_blocks == 2
    assert validation.num_uncovered_bytes > 0


def test_missing_crc_file_and_truncated_log_are_found(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    log = run / "events.jsonl"
    log.write_bytes(b"\n".join(log.read_bytes().split(b"\n")[:-2]) + b"\n")
    assert kinds(validate_run(run)) == {"crc", "unfinished"}
    (run / "events.crc").unlink()
    assert kinds(validate_run(run)) == {"crc", "unfinished"}


def test_torn_tail_is_found_and_not_parsed(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    with (run / "events.jsonl").open("ab") as log:
        log.write(b'{"event_type":"EPOCH_COM')

    validation = validate_run(run)

    assert validation.num_findings["torn"] == 1
    assert "crc" not in kinds(validation)


def test_gap_and_duplicate_in_the_sequence_are_found(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())
    place = index_of(lines, "PHASE_PROFILE_COMPLETED")

    gap = validate_run(run_of(tmp_path, [*lines[:place], *lines[place + 1 :]]))
    duplicate = validate_run(run_of(tmp_path, [*lines[:place], lines[place], *lines[place:]]))

    assert [f.line for f in gap.findings if f.kind == "seq"] == [place + 1]
    assert [f.line for f in duplicate.findings if f.kind == "seq"] == [place + 2]
    assert "equation" in kinds(gap)


def test_schema_violation_and_unknown_type_are_distinguished(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())
    lines[3] = lines[3].replace(b'"severity"', b'"gravity"')
    lines[4] = b'{"event_type":"NEW_THING","seq":4}'
    lines[5] = b"{"

    validation = validate_run(run_of(tmp_path, lines))

    assert {f.line: f.kind for f in validation.findings if f.kind in ("schema", "type")} == {
        4: "schema",
        5: "type",
        6: "schema",
    }


def test_missing_end_is_found(tmp_path: Path) -> None:
    assert kinds(validate_run(FakeRun(is_finished=False).write(tmp_path))) == {"unfinished"}


def test_run_event_in_the_operational_log_is_found(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    (run / "operational.jsonl").write_bytes(next(FakeRun().lines()) + b"\n")

    validation = validate_run(run)

    assert validation.num_findings == {"channel": 1}
    assert validation.findings[0].file == "operational.jsonl"


def test_log_on_its_own_needs_no_crc_file(tmp_path: Path) -> None:
    path = tmp_path / "copy.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in FakeRun().lines()))

    assert validate_run(path).is_valid


def test_only_a_few_findings_of_a_kind_are_shown_but_all_are_counted(tmp_path: Path) -> None:
    validation = validate_run(run_of(tmp_path, [b"{"] * 50))

    assert validation.num_findings["schema"] == 50
    assert sum(finding.kind == "schema" for finding in validation.findings) == 5
