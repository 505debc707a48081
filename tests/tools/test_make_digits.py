"""The shipped digits can be made again."""

import gzip
from pathlib import Path

import pytest
from tools.make_digits import ASSETS, main, read_rows, write_idx

from esper.runtime.formats import read_idx


def test_rows_become_a_shuffled_pair_of_idx_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[float(pixel % 17) for pixel in range(row, row + 64)] + [row % 10] for row in range(30)]
    source = tmp_path / "digits.csv.gz"
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    source.write_bytes(gzip.compress(text.encode()))

    assert main([str(source), str(tmp_path)]) == 0

    pixels = tmp_path / "digits-images-idx3-ubyte.gz"
    images = read_idx(pixels, item_shape=(8, 8), max_items=30).view(30, 64)
    labels = read_idx(tmp_path / "digits-labels-idx1-ubyte.gz", item_shape=(), max_items=30)
    made = [[*image.tolist(), int(label)] for image, label in zip(images, labels, strict=True)]
    assert made != read_rows(source)
    assert sorted(made) == sorted(read_rows(source))


def test_shipped_files_are_what_the_tool_writes(tmp_path: Path) -> None:
    shipped = ASSETS / "digits-images-idx3-ubyte.gz"
    images = read_idx(shipped, item_shape=(8, 8), max_items=2000)

    write_idx(tmp_path / "again.gz", tuple(images.shape), images.numpy().tobytes())

    # Compressed bytes differ between versions of zlib.
    again = gzip.decompress((tmp_path / "again.gz").read_bytes())
    assert again == gzip.decompress(shipped.read_bytes())


def test_attribution_names_authors_licence_and_source() -> None:
    text = (ASSETS / "ATTRIBUTION").read_text(encoding="utf-8")

    assert all(word in text for word in ("Alpaydin", "Kaynak", "CC BY 4.0", "10.24432/C50P49"))


def test_missing_argument_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().err
