"""Small data files in the formats that Esper reads, written for tests."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

FASHION_NAMES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
CIFAR_NAMES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def idx_bytes(shape: tuple[int, ...], data: bytes) -> bytes:
    """Return an IDX file of unsigned bytes."""
    return struct.pack(f">{len(shape) + 1}I", 8 << 8 | len(shape), *shape) + data


def fashion_files(num_train: int = 24, num_test: int = 10) -> dict[str, bytes]:
    """Return Fashion-MNIST in small: image number n has class n % 10 and n in every pixel.

    The pixels of test images are 200 brighter.
    """
    contents = []
    for num_images, brightness in ((num_train, 0), (num_test, 200)):
        pixels = b"".join(bytes([brightness + number]) * 784 for number in range(num_images))
        contents.append(idx_bytes((num_images, 28, 28), pixels))
        labels = bytes(number % 10 for number in range(num_images))
        contents.append(idx_bytes((num_images,), labels))
    return dict(zip(FASHION_NAMES, contents, strict=True))


def cifar_files(num_per_file: int = 4) -> dict[str, bytes]:
    """Return CIFAR-10 in small: the images of file n are n in every pixel, of classes 0, 1, ..."""
    return {
        name: b"".join(bytes([label]) + bytes([file_index]) * 3072 for label in range(num_per_file))
        for file_index, name in enumerate(CIFAR_NAMES)
    }


def cifar_archive(contents: dict[str, bytes]) -> bytes:
    """Return the archive in which CIFAR-10 is published."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_files(directory: Path, contents: dict[str, bytes], *, zipped: bool = False) -> Path:
    """Write files, each gzipped if asked, and return their directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = directory / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return directory
