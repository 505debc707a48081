"""A corpus keeps the inputs that reach code which smaller ones do not."""

from tools.soak.corpora import CORPORA, MAX_CORPUS_BYTES, minimized, read_corpus
from tools.soak.readers import READERS

from esper.leyline.printable import printable


def test_inputs_that_reach_what_smaller_ones_reach_are_left_out() -> None:
    inputs = [b"longer", b"c", b"a", b"\x1b"]
    assert minimized(lambda data: printable(data.decode()), inputs) == [b"\x1b", b"a"]


def test_corpora_are_small_and_of_readers_that_exist() -> None:
    assert sorted(path.stem for path in CORPORA.iterdir()) == sorted(READERS)
    assert all(sum(map(len, read_corpus(reader))) <= MAX_CORPUS_BYTES for reader in READERS)
