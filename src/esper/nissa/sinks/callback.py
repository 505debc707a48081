"""A function of the caller that gets the events of a run, in the process of the run."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from esper.leyline.engine_payloads import SinkStopped
from esper.leyline.errors import ContractError, EventDecodeError
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.bus.log_reader import LogReader
from esper.nissa.storage.blocks import Block

__all__ = ["run_callback"]

NAME: Final = "on_event"


async def run_callback(
    callback: Callable[[Event], object], first_seq: int, hub: TelemetryHub
) -> None:
    """Call a function with every event from `first_seq` on, on a thread beside the run's.

    Consumes: the log. Produces: calls; SINK_STOPPED if one of them raises, which is the last call.
    Waits for: the log to grow, and each call. Unblocked by: the feed, or cancellation, which does
    not wait for a call that hangs.
    """
    feed, reader, next_seq = hub.live.feed, LogReader(hub.live.log), first_seq
    while True:
        # Read before the log: if the feed was closed, the read below sees everything.
        is_closed = feed.is_closed
        block = await anyio.to_thread.run_sync(reader.read, next_seq)
        if block is not None:
            calls = partial(_call_with_all, callback, block)
            error = await anyio.to_thread.run_sync(calls, abandon_on_cancel=True)
            if error is not None:
                _report(error, next_seq, hub)
                return
            next_seq = block.next_seq
        elif is_closed:
            return
        else:
            await feed.wait_for(next_seq)


def _call_with_all(callback: Callable[[Event], object], block: Block) -> Exception | None:
    """Return what the function has raised, if anything."""
    for line in block.lines():
        try:
            event = decode_event(line)
        except EventDecodeError:
            continue  # `validate` reports damage
        try:
            callback(event)
        except Exception as error:
            return error
    return None


def _report(error: Exception, next_seq: int, hub: TelemetryHub) -> None:
    """Report in the operational log, and with its traceback in Python's."""
    logging.getLogger(__name__).warning("%s raised; the run goes on", NAME, exc_info=error)
    try:
        reason = f"{type(error).__name__}: {error}"
        hub.emit(SinkStopped(sink=NAME, reason=reason, next_seq=next_seq))
    except ContractError:
        return  # the run has ended meanwhile
