"""Files of unknown origin run nothing, take bounded memory and are refused in one sentence."""

import copy
import io
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.fingerprints import latest_checkpoint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.soak.corpora import read_corpus
from tools.soak.damage import SmallLog
from tools.soak.frame_fuzz import frame_target, mutated
from tools.soak.fuzz import (
    check_bomb,
    check_nothing_is_executed,
    targets,
    try_readers,
    try_target,
    try_websocket,
)
from tools.soak.readers import READERS, open_reader
from tools.soak.siege import rss_bytes

from esper.leyline.errors import UnreadableFileError
from esper.scripts.train import main
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint, read_checkpoint

MAX_GROWTH_BYTES = 64 << 20
NUM_TIMES = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> SmallLog:
    return SmallLog(tmp_path_factory.mktemp("log"))


def test_decoders_answer_mutated_bytes_with_a_value_or_a_sentence(
    log: SmallLog, tmp_path: Path
) -> None:
    rng = random.Random(1)
    for target in targets(tmp_path, log):
        try_target(target, rng, NUM_TIMES)


@pytest.mark.parametrize("reader", READERS)
def test_inputs_that_guided_fuzzing_kept_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    inputs = read_corpus(reader)
    assert inputs
    with open_reader(reader, tmp_path) as read:
        for data in inputs:
            read(data)


def test_commands_read_mutated_runs_without_a_traceback(log: SmallLog) -> None:
    try_readers(log, random.Random(2), 10)


def test_websocket_survives_random_bytes(tmp_path: Path) -> None:
    try_websocket(tmp_path, random.Random(3), 30)


def test_checkpoint_is_never_executed(tmp_path: Path) -> None:
    check_nothing_is_executed(tmp_path)


def test_packed_log_of_zeros_is_counted_in_bounded_memory(tmp_path: Path) -> None:
    check_bomb(tmp_path, 64 << 20)


def test_checkpoint_that_unpacks_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"version": 2, "weights": torch.zeros(1 << 24)}, plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for item in source.infolist():
            target.writestr(item.filename, source.read(item))
    path = tmp_path / "bomb.pt"
    path.write_bytes(packed.getvalue())
    del plain, packed

    before = rss_bytes()
    with pytest.raises(UnreadableFileError, match="not a checkpoint of Esper, or damaged"):
        read_checkpoint(path)
    assert rss_bytes() - before < MAX_GROWTH_BYTES


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_run(tmp_path_factory.mktemp("run"), TINY)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of the outer levels."""
    if isinstance(node, dict) and len(path) < 3:
        for key in node:
            yield (*path, key)
            yield from places(node[key], (*path, key))


def test_checkpoint_with_foreign_contents_is_refused_in_one_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    whole = read_checkpoint(checkpoint)
    del whole["version"]
    rng, num_refused = random.Random(4), 0
    for path in rng.sample(list(places(whole)), 25):
        state = copy.deepcopy(whole)
        node: Any = state
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = rng.choice([None, -1, "x", [], {}, torch.zeros(3)])
        foreign = checkpoint.with_name("foreign.pt")
        foreign.write_bytes(encode_checkpoint(state))

        code = main(["ppo", "--resume", str(foreign), "--quiet"])

        complaint = capsys.readouterr().err
        assert code in (0, 2), f"{path}: exit code {code}: {complaint}"
        assert "Traceback" not in complaint
        assert complaint.count("\n") == (code != 0)
        num_refused += code == 2
    assert num_refused > 0


def test_protocol_survives_mutated_frames_in_bounded_output() -> None:
    rng = random.Random(5)
    with frame_target() as target:
        for _ in range(300):
            target.try_input(mutated(rng))
