"""Measure the path of a call through a package: the functions on the stack, across threads.

A leg is the part of one thread's stack from a start function down to an end function, both
included. A walk that changes threads is several legs. A function that is called on the way and has
returned before the end is reached is not on the stack and does not count.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias


@dataclass(frozen=True, order=True)
class Call:
    """A function that was called, such as `esper.nissa.bus.inbox` and `Inbox.put`."""

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


@dataclass(frozen=True)
class Leg:
    """The stack of one thread from a start to an end, each given as `module:qualified.name`."""

    start: str
    end: str


Stack: TypeAlias = tuple[Call, ...]


def record_stacks(run: Callable[[], object], *, package: str, ends: Iterable[str]) -> set[Stack]:
    """Run something and return every stack with which one of the ends was entered.

    Only functions of the package are on the stacks, the outermost first. Threads that were started
    before this call are not recorded.
    """
    names = frozenset(ends)
    short_names = frozenset(name.rpartition(":")[2].rpartition(".")[2] for name in names)
    found: set[Stack] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in short_names and str(_call(frame)) in names:
            found.add(_stack_of(frame, package))

    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)
    return found


def longest(stacks: Iterable[Stack], leg: Leg) -> Stack:
    """Return the longest path from a leg's start to its end."""
    ways = [_part_of(stack, leg) for stack in stacks if str(stack[-1]) == leg.end]
    found = [way for way in ways if way]
    if not found:
        raise LookupError(f"{leg.end} was never reached from {leg.start}: is a name out of date?")
    return max(found, key=lambda way: (len(way), way))


def modules_of(ways: Iterable[Sequence[Call]]) -> list[str]:
    """Return the distinct modules of several paths, in the order in which they are entered."""
    return list(dict.fromkeys(call.module for way in ways for call in way))


def _part_of(stack: Stack, leg: Leg) -> Stack:
    starts = [index for index, call in enumerate(stack) if str(call) == leg.start]
    return stack[starts[-1] :] if starts else ()


def _stack_of(frame: FrameType | None, package: str) -> Stack:
    calls: list[Call] = []
    while frame is not None:
        call = _call(frame)
        if f"{call.module}.".startswith(f"{package}."):
            calls.append(call)
        frame = frame.f_back
    return tuple(reversed(calls))


def _call(frame: FrameType) -> Call:
    return Call(str(frame.f_globals.get("__name__")), frame.f_code.co_qualname)
