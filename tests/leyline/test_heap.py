"""What is asked of the C library, and that nothing is where it is another one."""

import ctypes

import pytest

from esper.leyline.heap import return_free_memory, share_one_heap

M_ARENA_MAX = -8


class Glibc:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def mallopt(self, *arguments: int) -> int:
        self.calls.append(("mallopt", arguments))
        return 1

    def malloc_trim(self, *arguments: int) -> int:
        self.calls.append(("malloc_trim", arguments))
        return 1


def test_threads_share_one_heap_and_free_memory_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Glibc()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    share_one_heap()
    return_free_memory()
    assert library.calls == [("mallopt", (M_ARENA_MAX, 1)), ("malloc_trim", (0,))]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    share_one_heap()
    return_free_memory()
