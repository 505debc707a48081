"""How each built-in data set is located, read and split."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from esper.leyline.config import DataSource
from esper.leyline.errors import DownloadError, NoDataError, UnreadableFileError
from esper.leyline.tasks import CnnHostSpec, ModuleHostSpec, TaskSpec, TransformerHostSpec
from esper.runtime.datasets import PixelScale, Split, TensorDataset
from esper.runtime.downloads import Checksum, RemoteFile, download
from esper.runtime.formats import (
    cifar_records,
    read_archive,
    read_bounded,
    read_idx,
    require_regular,
)
from esper.runtime.sources import DataOrigin, DataRequest
from esper.runtime.synthetic import PartSizes, synthetic_images, synthetic_text

__all__ = ["LOADERS", "Loader"]

Loader: TypeAlias = Callable[[TaskSpec, DataRequest], TensorDataset]
_Attempt: TypeAlias = Callable[[DataRequest], TensorDataset | None]


class _Synthesize(Protocol):
    def __call__(self, *, note: str) -> TensorDataset: ...


DIGITS_SIZES: Final = PartSizes(train=1000, val=397, test=400)
DIGITS_SCALE: Final = PixelScale(mean=(4.88,), std=(6.02,))
FASHION_SIZES: Final = PartSizes(train=4000, val=500, test=500)
FASHION_SCALE: Final = PixelScale(mean=(72.94,), std=(90.02,))
FASHION_FILES: Final[Mapping[str, str]] = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
"""File names without .gz, with the MD5 of the .gz file that the data set's README publishes."""
FASHION_URL: Final = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_DEBIAN_DIR: Final = Path("/usr/share/datasets/fashion-mnist")
FASHION_MAX_BYTES: Final = 32 << 20
MAX_IMAGES: Final = 100_000
MAX_LABEL: Final = 9

CIFAR_SIZES: Final = PartSizes(train=2000, val=500, test=500)
CIFAR_SCALE: Final = PixelScale(mean=(125.307, 122.961, 113.8575), std=(62.985, 62.0925, 66.708))
CIFAR_CROP_PADDING: Final = 4
CIFAR_TRAIN_FILES: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST_FILE: Final = "test_batch.bin"
CIFAR_FILE_BYTES: Final = 30_730_000
CIFAR_MAX_BYTES: Final = 256 << 20
"""Limit for the unpacked archive; the real one has 184 million bytes."""
CIFAR_ARCHIVE: Final = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    checksum=Checksum(algorithm="md5", hexdigest="c32a1d4ab5d03f1284b67883e8d87530"),
    max_bytes=176 << 20,
)

MAX_TEXT_BYTES: Final = 256 << 20
SYNTHETIC_TEXT_BYTES: Final = 400_000
MAX_VAL_WINDOWS: Final = 256
MAX_TEST_WINDOWS: Final = 1024
TEXT_VAL_SHARE: Final = 0.05
"""Share of the text used for validation; the test split has the same size."""


def _first_available(
    request: DataRequest,
    name: str,
    attempts: Sequence[_Attempt],
    synthesize: _Synthesize,
) -> TensorDataset:
    """Return the data of the first successful attempt, or synthetic data where allowed."""
    if request.source is DataSource.SYNTHETIC:
        return synthesize(note="the data are synthetic, as requested")
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise UnreadableFileError(request.data_dir, "no such directory")
    reason = "there are no files"
    try:
        for attempt in attempts:
            dataset = attempt(request)
            if dataset is not None:
                return dataset
    # Not an error yet: with `auto` the run goes on with synthetic data, and says so.
    except DownloadError as error:
        reason = str(error)
    if request.source is DataSource.REAL:
        raise NoDataError(name, reason)
    return synthesize(note=f"the data are synthetic because there are none of {name}: {reason}")


def load_digits(spec: TaskSpec, request: DataRequest) -> TensorDataset:
    """Load the handwritten digits that ship with Esper."""
    synthesize = partial(synthetic_images, _image_host(spec), DIGITS_SIZES)
    return _first_available(request, "digits", [_shipped_digits], synthesize)


def _shipped_digits(_: DataRequest) -> TensorDataset:
    assets = files("esper.runtime") / "assets"
    images = assets / "digits-images-idx3-ubyte.gz"
    data = _labelled_images(images, assets / "digits-labels-idx1-ubyte.gz", image_size=8)
    sizes = DIGITS_SIZES
    return TensorDataset(
        train=_rows(data, 0, sizes.train),
        val=_rows(data, sizes.train, sizes.train + sizes.val),
        test=_rows(data, sizes.train + sizes.val, len(data)),
        origin=DataOrigin.PACKAGE,
        pixel_scale=DIGITS_SCALE,
    )


def load_fashion_mnist(spec: TaskSpec, request: DataRequest) -> TensorDataset:
    """Load Fashion-MNIST, downscaled to the host's input size."""
    host = _image_host(spec)
    synthesize = partial(synthetic_images, host, FASHION_SIZES)
    attempts = [_find_fashion_mnist, _fetch_fashion_mnist]
    dataset = _first_available(request, "fashion_mnist", attempts, synthesize)
    return dataset.with_images_of(host.sample_shape[-1])


def _find_fashion_mnist(request: DataRequest) -> TensorDataset | None:
    given = request.data_dir
    in_given = [] if given is None else [given, given / "fashion_mnist", given / "fashion-mnist"]
    for directory in (*in_given, FASHION_DEBIAN_DIR):
        paths = _files_in(directory, {name: (name, f"{name}.gz") for name in FASHION_FILES})
        if paths is not None:
            return _fashion_mnist(paths, DataOrigin.FILES)
    return None


def _fetch_fashion_mnist(request: DataRequest) -> TensorDataset:
    paths = {}
    for name, md5 in FASHION_FILES.items():
        remote = RemoteFile(
            url=f"{FASHION_URL}/{name}.gz",
            checksum=Checksum(algorithm="md5", hexdigest=md5),
            max_bytes=FASHION_MAX_BYTES,
        )
        paths[name] = _fetched(remote, request.cache_dir / "fashion_mnist", request)
    return _fashion_mnist(paths, DataOrigin.DOWNLOAD)


def _fashion_mnist(paths: Mapping[str, Path], origin: DataOrigin) -> TensorDataset:
    train_images, train_labels, test_images, test_labels = (paths[name] for name in FASHION_FILES)
    data = _labelled_images(train_images, train_labels, image_size=28)
    num_train = _num_train(data, 12, train_images)
    return TensorDataset(
        train=_rows(data, 0, num_train),
        val=_rows(data, num_train, len(data)),
        test=_labelled_images(test_images, test_labels, image_size=28),
        origin=origin,
        pixel_scale=FASHION_SCALE,
    )


def load_cifar10(spec: TaskSpec, request: DataRequest) -> TensorDataset:
    """Load CIFAR-10."""
    synthesize = partial(
        synthetic_images, _image_host(spec), CIFAR_SIZES, crop_padding=CIFAR_CROP_PADDING
    )
    return _first_available(request, "cifar10", [_find_cifar10, _fetch_cifar10], synthesize)


def _find_cifar10(request: DataRequest) -> TensorDataset | None:
    given = request.data_dir
    if given is None:
        return None
    names = (*CIFAR_TRAIN_FILES, CIFAR_TEST_FILE)
    for directory in (given, given / "cifar-10-batches-bin"):
        paths = _files_in(directory, {name: (name,) for name in names})
        if paths is not None:
            contents = {name: read_bounded(paths[name], CIFAR_FILE_BYTES) for name in names}
            return _cifar10(contents, directory, DataOrigin.FILES)
    archive = given / CIFAR_ARCHIVE.name
    return _cifar10_archive(archive, DataOrigin.FILES) if archive.is_file() else None


def _fetch_cifar10(request: DataRequest) -> TensorDataset:
    archive = _fetched(CIFAR_ARCHIVE, request.cache_dir / "cifar10", request)
    return _cifar10_archive(archive, DataOrigin.DOWNLOAD)


def _cifar10_archive(archive: Path, origin: DataOrigin) -> TensorDataset:
    names = (*CIFAR_TRAIN_FILES, CIFAR_TEST_FILE)
    contents = read_archive(
        archive, names, max_file_bytes=CIFAR_FILE_BYTES, max_bytes=CIFAR_MAX_BYTES
    )
    return _cifar10(contents, archive, origin)


def _cifar10(contents: Mapping[str, bytes], where: Path, origin: DataOrigin) -> TensorDataset:
    parts = {
        name: _labelled(*cifar_records(data, where / name), where / name)
        for name, data in contents.items()
    }
    data = Split(
        inputs=torch.cat([parts[name].inputs for name in CIFAR_TRAIN_FILES]),
        targets=torch.cat([parts[name].targets for name in CIFAR_TRAIN_FILES]),
    )
    num_train = _num_train(data, 10, where)
    return TensorDataset(
        train=_rows(data, 0, num_train),
        val=_rows(data, num_train, len(data)),
        test=parts[CIFAR_TEST_FILE],
        origin=origin,
        pixel_scale=CIFAR_SCALE,
        crop_padding=CIFAR_CROP_PADDING,
    )


def load_text(spec: TaskSpec, request: DataRequest) -> TensorDataset:
    """Load bytes of text: the .txt files of the data directory, or Python's own help texts."""
    assert isinstance(spec.host, TransformerHostSpec), f"{spec.name} reads text"
    block_size = spec.host.block_size
    attempts: list[_Attempt] = [partial(_text_files, block_size), partial(_help_texts, block_size)]
    return _first_available(
        request, spec.dataset, attempts, partial(_synthetic_text_data, block_size)
    )


def load_nothing(_spec: TaskSpec, _request: DataRequest) -> TensorDataset:
    """Return a placeholder of one blank row per split: a probe uses no data."""
    blank = Split(inputs=torch.zeros(1, 1), targets=torch.zeros(1, dtype=torch.long))
    return TensorDataset(train=blank, val=blank, test=blank, origin=DataOrigin.NONE)


def _text_files(block_size: int, request: DataRequest) -> TensorDataset | None:
    if request.data_dir is None:
        return None
    paths = sorted(request.data_dir.glob("*.txt"))
    if not paths:
        raise UnreadableFileError(request.data_dir, "contains no file whose name ends in .txt")
    text = bytearray()
    for path in paths:
        text += _head_of(path, MAX_TEXT_BYTES - len(text))
    is_cut = len(text) == MAX_TEXT_BYTES
    note = f"only the first {MAX_TEXT_BYTES} bytes of the text are used" if is_cut else None
    return _windowed(text, block_size, request.data_dir, DataOrigin.FILES, note)


def _head_of(path: Path, num_bytes: int) -> bytes:
    require_regular(path)
    try:
        with path.open("rb") as stream:
            return stream.read(num_bytes)
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror or error}") from None


def _help_texts(block_size: int, _: DataRequest) -> TensorDataset:
    # Imported here because the module takes half a megabyte and only this task needs it.
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    return _windowed(text, block_size, "pydoc_data.topics", DataOrigin.PACKAGE)


def _synthetic_text_data(block_size: int, *, note: str) -> TensorDataset:
    text = synthetic_text(SYNTHETIC_TEXT_BYTES)
    return _windowed(text, block_size, "synthetic text", DataOrigin.SYNTHETIC, note)


def _windowed(
    text: bytes | bytearray,
    block_size: int,
    where: object,
    origin: DataOrigin,
    note: str | None = None,
) -> TensorDataset:
    """Split a text into train, validation and test, and each of them into windows."""
    num_held_out = int(len(text) * TEXT_VAL_SHARE)
    if num_held_out <= block_size:
        least = int((block_size + 1) / TEXT_VAL_SHARE)
        reason = f"has {len(text)} bytes of text; windows of {block_size} need at least {least}"
        raise UnreadableFileError(where, reason)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    num_train = len(tokens) - 2 * num_held_out
    val, test = tokens[num_train : num_train + num_held_out], tokens[-num_held_out:]
    return TensorDataset(
        train=_windows(tokens[:num_train], block_size),
        val=_windows(val, block_size).spread(MAX_VAL_WINDOWS),
        test=_windows(test, block_size).spread(MAX_TEST_WINDOWS),
        origin=origin,
        note=note,
    )


def _windows(tokens: Tensor, block_size: int) -> Split:
    """Return windows and their next-byte targets; both are views of the tokens."""
    num_bytes = (len(tokens) - 1) // block_size * block_size
    return Split(
        inputs=tokens[:num_bytes].view(-1, block_size),
        targets=tokens[1 : num_bytes + 1].view(-1, block_size),
    )


def _image_host(spec: TaskSpec) -> CnnHostSpec | ModuleHostSpec:
    assert isinstance(spec.host, CnnHostSpec | ModuleHostSpec), f"{spec.name} reads images"
    return spec.host


def _labelled_images(images: Traversable, labels: Traversable, *, image_size: int) -> Split:
    """Read a pair of IDX files."""
    pixels = read_idx(images, item_shape=(image_size, image_size), max_items=MAX_IMAGES)
    classes = read_idx(labels, item_shape=(), max_items=MAX_IMAGES)
    if len(pixels) != len(classes):
        reason = f"contains {len(classes)} labels for the {len(pixels)} images of {images.name}"
        raise UnreadableFileError(labels, reason)
    return _labelled(pixels[:, None], classes, labels)


def _labelled(images: Tensor, labels: Tensor, path: object) -> Split:
    if int(labels.max()) > MAX_LABEL:
        raise UnreadableFileError(
            path, f"contains the label {int(labels.max())}; labels are 0 to 9"
        )
    return Split(inputs=images, targets=labels.long())


def _num_train(data: Split, one_in: int, path: object) -> int:
    """Return the number of training images when the last 1 / `one_in` are held out."""
    num_train = len(data) - max(1, len(data) // one_in)
    if num_train == 0:
        raise UnreadableFileError(path, "contains a single image, but validation needs one as well")
    return num_train


def _rows(data: Split, start: int, stop: int) -> Split:
    return Split(inputs=data.inputs[start:stop], targets=data.targets[start:stop])


def _files_in(directory: Path, choices: Mapping[str, Sequence[str]]) -> dict[str, Path] | None:
    """Find each file under one of its names; None if no file exists, an error if some do."""
    found = {
        name: directory / choice
        for name, names in choices.items()
        for choice in names
        if _is_data_file(directory / choice)
    }
    if not found:
        return None
    for name in choices:
        if name not in found:
            beside = next(iter(found.values())).name
            raise UnreadableFileError(directory / name, f"is missing although {beside} exists")
    return found


def _is_data_file(path: Path) -> bool:
    """Return whether there is a file; a pipe or a device in its place is an error.

    To pass over it would take the data from elsewhere, unnoticed.
    """
    if path.exists() and not path.is_file():
        raise UnreadableFileError(path, "is not a regular file; put the data there, or remove it")
    return path.is_file()


def _fetched(remote: RemoteFile, directory: Path, request: DataRequest) -> Path:
    """Return the cached file, downloading it if it is not there."""
    path = directory / remote.name
    if not path.is_file():
        download(
            remote,
            path,
            on_progress=request.on_progress,
            check_cancelled=request.check_cancelled,
        )
    return path


LOADERS: Final[Mapping[str, Loader]] = {
    "digits": load_digits,
    "fashion_mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "bytes_lm": load_text,
    "tinystories": load_text,
    "probe": load_nothing,
}
"""The loader of each data set, by name."""
