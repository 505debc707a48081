"""Where each data set is found, what of it is seen when, and what damage does."""

import gzip
import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runtime.data_files import (
    cifar_archive,
    cifar_files,
    fashion_files,
    idx_bytes,
    write_files,
)
from tests.runtime.file_server import ServedFile, serving

from esper.leyline.config import DataSource
from esper.leyline.errors import NoDataError, UnreadableFileError
from esper.leyline.probes import PROBE_PREFIX
from esper.leyline.tasks import TASKS, CnnHostSpec, ModuleHostSpec, TransformerHostSpec
from esper.runtime import loaders
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.downloads import Checksum, RemoteFile
from esper.runtime.loaders import LOADERS
from esper.runtime.sources import DataOrigin, DataRequest

UNREACHABLE = "http://127.0.0.1:9"  # the discard port: no listener


@pytest.fixture(autouse=True)
def nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide what this machine has, and the network."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loaders, "FASHION_DEBIAN_DIR", tmp_path / "debian")
    monkeypatch.setattr(loaders, "FASHION_URL", UNREACHABLE)
    checksum = Checksum(algorithm="md5", hexdigest="0" * 32)
    archive = RemoteFile(url=f"{UNREACHABLE}/archive", checksum=checksum, max_bytes=1)
    monkeypatch.setattr(loaders, "CIFAR_ARCHIVE", archive)


def load(task: str, source: str = "auto", data_dir: Path | None = None) -> TensorDataset:
    spec = TASKS[task]
    request = DataRequest(source=DataSource(source), data_dir=data_dir)
    return LOADERS[spec.dataset](spec, request)


def sizes(dataset: TensorDataset) -> list[int]:
    return [len(dataset.part(part)) for part in Part]


def rows(dataset: TensorDataset, part: Part) -> list[bytes]:
    return [row.numpy().tobytes() for row in dataset.part(part).inputs]


def test_digits_ship_in_three_parts_with_every_class_in_each() -> None:
    digits = load("digits")

    assert sizes(digits) == [1000, 397, 400]
    assert digits.origin is DataOrigin.PACKAGE
    assert digits.train.inputs.shape == (1000, 1, 8, 8)
    for part in Part:
        shares = digits.part(part).targets.bincount(minlength=10) / len(digits.part(part))
        assert shares.min() > 0.06
        assert shares.max() < 0.15


def test_digits_are_the_published_ones() -> None:
    digits = load("digits", "real")
    images = torch.cat([digits.part(part).inputs for part in Part])
    labels = torch.cat([digits.part(part).targets for part in Part])

    # Facts of the published set: classes, and pixels that count to 16 in 4x4 blocks.
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (int(images.min()), int(images.max()), int(images.sum())) == (0, 16, 561718)


def test_digits_are_scaled_to_mean_zero_and_deviation_one() -> None:
    digits = load("digits")
    assert digits.pixel_scale is not None
    pixels = digits.train.inputs.double()

    assert pixels.mean().item() == pytest.approx(digits.pixel_scale.mean[0], abs=0.01)
    assert pixels.std().item() == pytest.approx(digits.pixel_scale.std[0], abs=0.01)


@pytest.mark.parametrize("task", ["digits", "fashion_mnist", "cifar_baseline"])
@pytest.mark.parametrize("source", ["real", "synthetic"])
def test_no_sample_is_in_two_parts(task: str, source: str, tmp_path: Path) -> None:
    if task == "fashion_mnist":
        write_files(tmp_path, fashion_files(120))
    elif task == "cifar_baseline":
        random_bytes = random.Random(0)
        files = {
            name: b"".join(bytes([3]) + random_bytes.randbytes(3072) for _ in range(4))
            for name in cifar_files()
        }
        write_files(tmp_path, files)
    dataset = load(task, source, tmp_path)
    train, val, test = (set(rows(dataset, part)) for part in Part)

    assert train.isdisjoint(val)
    assert train.isdisjoint(test)
    assert val.isdisjoint(test)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("folder", [".", "fashion_mnist", "fashion-mnist"])
def test_fashion_mnist_is_read_from_the_data_directory(
    tmp_path: Path, folder: str, zipped: bool
) -> None:
    write_files(tmp_path / folder, fashion_files(24, 10), zipped=zipped)

    dataset = load("fashion_mnist", "real", tmp_path)

    assert dataset.origin is DataOrigin.FILES
    assert sizes(dataset) == [22, 2, 10]
    assert dataset.val.inputs[0].unique().tolist() == [22]
    assert dataset.val.targets.tolist() == [2, 3]


def test_clothes_are_shrunk_to_what_the_host_looks_at(tmp_path: Path) -> None:
    write_files(tmp_path, fashion_files())
    whole, small = (
        load(task, "real", tmp_path).train for task in ("fashion_mnist", "fashion_growth")
    )

    expected = torch.nn.functional.avg_pool2d(whole.inputs.double(), 2)
    assert small.inputs.dtype == torch.uint8
    assert small.inputs.shape == (len(whole), 1, 14, 14)
    assert float((small.inputs - expected).abs().max()) <= 0.5
    assert torch.equal(small.targets, whole.targets)


def test_fashion_mnist_of_the_debian_package_is_found(tmp_path: Path) -> None:
    write_files(tmp_path / "debian", fashion_files(), zipped=True)

    assert load("fashion_mnist").origin is DataOrigin.FILES


def test_files_are_preferred_to_anything_else(tmp_path: Path) -> None:
    write_files(tmp_path / "debian", fashion_files(24))
    write_files(tmp_path / "mine", fashion_files(36))

    assert sizes(load("fashion_mnist", data_dir=tmp_path / "mine"))[0] == 33


def test_fashion_mnist_is_fetched_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "train-images-idx3-ubyte"
    content = gzip.compress(fashion_files()[name])
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(loaders, "FASHION_FILES", {**loaders.FASHION_FILES, name: digest})
    cache = tmp_path / "cache" / "esper" / "fashion_mnist"
    write_files(cache, {k: v for k, v in fashion_files().items() if k != name}, zipped=True)
    with serving(ServedFile(content)) as file:
        monkeypatch.setattr(loaders, "FASHION_URL", file.url.rpartition("/")[0])
        first = load("fashion_mnist", "real")
        second = load("fashion_mnist", "real")

    assert first.origin is second.origin is DataOrigin.DOWNLOAD
    assert len(file.ranges) == 1
    assert torch.equal(first.train.inputs, second.train.inputs)


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_cifar_is_read_from_the_data_directory(tmp_path: Path, folder: str) -> None:
    write_files(tmp_path / folder, cifar_files(4))

    dataset = load("cifar_baseline", "real", tmp_path)

    assert dataset.origin is DataOrigin.FILES
    assert sizes(dataset) == [18, 2, 4]
    # Validation is the end of the last training file; the test file is nowhere else.
    assert dataset.val.inputs.unique().tolist() == [4]
    assert dataset.val.targets.tolist() == [2, 3]
    assert dataset.test.inputs.unique().tolist() == [5]


def test_cifar_archive_gives_what_its_files_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = load("cifar_baseline", data_dir=write_files(tmp_path / "files", cifar_files()))
    content = cifar_archive(cifar_files())
    write_files(tmp_path / "archive", {"all.tar.gz": content})
    checksum = Checksum(algorithm="sha256", hexdigest=hashlib.sha256(content).hexdigest())
    with serving(ServedFile(content, name="all.tar.gz")) as file:
        remote = RemoteFile(url=file.url, checksum=checksum, max_bytes=1 << 20)
        monkeypatch.setattr(loaders, "CIFAR_ARCHIVE", remote)
        given = load("cifar_baseline", "real", tmp_path / "archive")
        fetched = load("cifar_baseline", "real")

    assert (given.origin, fetched.origin) == (DataOrigin.FILES, DataOrigin.DOWNLOAD)
    for dataset in (given, fetched):
        for part in Part:
            assert torch.equal(dataset.part(part).inputs, unpacked.part(part).inputs)
            assert torch.equal(dataset.part(part).targets, unpacked.part(part).targets)


@pytest.mark.parametrize("task", ["fashion_mnist", "cifar_baseline"])
def test_without_data_auto_makes_some_up_and_says_so(task: str) -> None:
    dataset = load(task)

    assert dataset.origin is DataOrigin.SYNTHETIC
    assert dataset.note is not None
    assert "synthetic" in dataset.note
    assert UNREACHABLE in dataset.note


@pytest.mark.parametrize("task", ["fashion_mnist", "cifar_baseline"])
def test_without_data_real_is_an_error_with_a_way_on(task: str) -> None:
    with pytest.raises(NoDataError, match="--data-dir") as caught:
        load(task, "real")

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("task", [name for name in TASKS if not name.startswith(PROBE_PREFIX)])
def test_synthetic_data_fit_the_host_of_every_task(task: str) -> None:
    spec, dataset = TASKS[task], load(task, "synthetic")

    assert dataset.origin is DataOrigin.SYNTHETIC
    for part in Part:
        split = dataset.part(part)
        if isinstance(spec.host, TransformerHostSpec):
            assert split.inputs.shape[1:] == split.targets.shape[1:] == (spec.host.block_size,)
        else:
            assert isinstance(spec.host, CnnHostSpec | ModuleHostSpec)
            assert split.inputs.shape[1:] == spec.host.sample_shape
            assert split.targets.unique().tolist() == list(range(spec.host.num_classes))


def broken(name: str, content: bytes) -> dict[str, bytes]:
    return {**fashion_files(), name: content}


@pytest.mark.parametrize(
    ("files", "culprit", "reason"),
    [
        (broken("t10k-images-idx3-ubyte", b"\0"), "t10k-images-idx3-ubyte", "truncated"),
        (
            broken("train-labels-idx1-ubyte", idx_bytes((3,), b"\0\1\2")),
            "train-labels-idx1-ubyte",
            "contains 3 labels for the 24 images",
        ),
        (
            broken("train-labels-idx1-ubyte", idx_bytes((24,), b"\12" * 24)),
            "train-labels-idx1-ubyte",
            "label 10",
        ),
        (
            broken("train-images-idx3-ubyte", idx_bytes((1, 32, 32), bytes(1024))),
            "train-images-idx3-ubyte",
            "shape",
        ),
    ],
)
def test_damaged_fashion_file_is_named_and_nothing_else_is_tried(
    tmp_path: Path, files: dict[str, bytes], culprit: str, reason: str
) -> None:
    write_files(tmp_path / "mine", files)

    with pytest.raises(UnreadableFileError, match=rf"mine/{culprit}: .*{reason}") as caught:
        load("fashion_mnist", "auto", tmp_path / "mine")

    assert caught.value.exit_code == 2


def test_few_images_still_leave_one_to_validate_on(tmp_path: Path) -> None:
    write_files(tmp_path, fashion_files(2, 1))

    assert sizes(load("fashion_mnist", "real", tmp_path)) == [1, 1, 1]


def test_single_image_is_too_few(tmp_path: Path) -> None:
    write_files(tmp_path, fashion_files(1, 1))

    with pytest.raises(
        UnreadableFileError, match="train-images-idx3-ubyte: contains a single image"
    ):
        load("fashion_mnist", "real", tmp_path)


def test_missing_file_among_others_is_named(tmp_path: Path) -> None:
    files = cifar_files()
    del files["data_batch_3.bin"]
    write_files(tmp_path, files)

    with pytest.raises(UnreadableFileError, match=r"data_batch_3\.bin: is missing although data_b"):
        load("cifar_baseline", "auto", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\1" * 3000, b"\377" * 3073])
def test_damaged_cifar_file_is_named(tmp_path: Path, content: bytes) -> None:
    write_files(tmp_path, {**cifar_files(), "data_batch_2.bin": content})

    with pytest.raises(UnreadableFileError, match=r"data_batch_2\.bin: (has|contains) "):
        load("cifar_baseline", "auto", tmp_path)


@pytest.mark.parametrize("task", ["digits", "fashion_mnist", "cifar_baseline", "bytes_lm"])
def test_data_directory_that_does_not_exist_is_an_error(tmp_path: Path, task: str) -> None:
    with pytest.raises(UnreadableFileError, match="no such directory"):
        load(task, "auto", tmp_path / "nowhere")


def test_text_files_are_cut_into_windows_that_predict_the_next_byte(tmp_path: Path) -> None:
    text = bytes(number * 7 % 251 for number in range(8000))
    (tmp_path / "a.txt").write_bytes(text[:3000])
    (tmp_path / "b.txt").write_bytes(text[3000:])
    (tmp_path / "c.json").write_bytes(b"not text")

    dataset = load("bytes_lm", "real", tmp_path)

    assert dataset.origin is DataOrigin.FILES
    assert dataset.train.inputs.flatten().tolist() == list(text[: len(dataset.train) * 64])
    for part in Part:
        split = dataset.part(part)
        assert torch.equal(split.inputs.flatten()[1:], split.targets.flatten()[:-1])
    # 5 % each for validation and test, whole windows, in the order of the text.
    assert sizes(dataset) == [112, 6, 6]
    assert bytes(dataset.val.inputs.flatten().tolist()) == text[7200 : 7200 + 6 * 64]
    assert bytes(dataset.test.inputs.flatten().tolist()) == text[7600 : 7600 + 6 * 64]


def test_help_texts_of_python_are_the_default_corpus() -> None:
    dataset = load("bytes_lm", "real")

    assert dataset.origin is DataOrigin.PACKAGE
    assert len(dataset.train) > 4000
    assert len(dataset.val) <= 256
    assert b"Python" in bytes(dataset.train.inputs.flatten().tolist())


def test_held_out_windows_are_spread_over_their_whole_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("bytes_lm", "synthetic")
    monkeypatch.setattr(loaders, "MAX_VAL_WINDOWS", 10)
    few = load("bytes_lm", "synthetic")

    every = [row.tolist() for row in whole.val.inputs]
    positions = [every.index(row.tolist()) for row in few.val.inputs]
    assert len(positions) == 10
    assert max(positions) > len(every) * 0.8
    assert max(np.diff(positions)) - min(np.diff(positions)) <= 1


def test_long_text_is_cut_and_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "MAX_TEXT_BYTES", 5000)
    (tmp_path / "a.txt").write_bytes(b"a" * 4000)
    (tmp_path / "b.txt").write_bytes(b"b" * 4000)

    dataset = load("bytes_lm", "real", tmp_path)

    assert dataset.note == "only the first 5000 bytes of the text are used"
    assert sizes(dataset) == [(4500 - 1) // 64, 249 // 64, 249 // 64]


@pytest.mark.parametrize(
    ("files", "reason"),
    [({}, "no file whose name ends in .txt"), ({"a.txt": b"short"}, "5 bytes of text; windows of")],
)
def test_directory_without_enough_text_is_an_error(
    tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    write_files(tmp_path, files)

    with pytest.raises(UnreadableFileError, match=reason):
        load("bytes_lm", "auto", tmp_path)


def test_every_shipped_task_has_a_loader() -> None:
    assert {spec.dataset for spec in TASKS.values()} == set(LOADERS)


def test_loading_leaves_the_global_generators_alone() -> None:
    torch_state, other_states = torch.get_rng_state(), (random.getstate(), numpy_state())

    for task in ("digits", "cifar_baseline", "bytes_lm"):
        load(task, "synthetic")

    assert torch.equal(torch_state, torch.get_rng_state())
    assert other_states == (random.getstate(), numpy_state())


def numpy_state() -> bytes:
    return b"".join(np.asarray(item).tobytes() for item in np.random.get_state())
