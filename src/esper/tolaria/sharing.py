"""What the threads of a process may share: values that are built once, and exclusive blocks."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["BuiltOnce", "OneAtATime"]

T = TypeVar("T")


class OneAtATime:
    """A `with` block that only one thread of the process executes at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@dataclass(eq=False, slots=True)
class BuiltOnce(Generic[T]):
    """Builds a value when it is first needed, and returns the same one to every thread."""

    build: Callable[[], T]
    _built: tuple[T] | None = None
    _building: OneAtATime = field(default_factory=OneAtATime)

    def __call__(self) -> T:
        """Return the value; other threads wait while the first one builds it."""
        with self._building:
            if self._built is None:
                self._built = (self.build(),)
            return self._built[0]
