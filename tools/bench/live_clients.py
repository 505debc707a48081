"""A process of websocket clients for the benches: prints how many events they got, and how late.

Its lines are `ready` once per client, how many events the slowest one has got, and the result.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Final

import anyio
from websockets.asyncio.client import connect

PROGRESS_EVENTS: Final = 256
"""How often the slowest client's progress is printed."""


@dataclass(eq=False, slots=True)
class Clients:
    """What the clients have got so far."""

    num_events: int
    """That each client waits for."""
    is_timed: bool
    num_seen: list[int]
    latencies_s: list[float] = field(default_factory=list)
    _num_printed: int = 0

    def note(self, index: int, frame: str) -> None:
        """Count the events of a frame, and note the delay of each."""
        now_s = time.time()
        self.num_seen[index] += frame.count('{"event_type"')
        for line in frame.splitlines() if self.is_timed else ():
            begin = line.index('"ts":') + 5
            self.latencies_s.append(now_s - float(line[begin : line.index(",", begin)]))
        # Looking at all clients takes time: only those that may be the slowest one do.
        if self.num_seen[index] >= self._num_printed + PROGRESS_EVENTS:
            slowest = min(self.num_seen)
            if slowest >= self._num_printed + PROGRESS_EVENTS:
                self._num_printed = slowest
                print(slowest, flush=True)

    async def follow(self, index: int, url: str) -> None:
        """Read until one client has got all events."""
        async with connect(url, compression=None, max_size=None) as client:
            await client.send('{"batch":true}')
            while '"is_subscribed":true' not in str(await client.recv()):
                pass  # the hello, and what was on its way before the subscription
            print("ready", flush=True)
            while self.num_seen[index] < self.num_events:
                frame = await client.recv()
                assert isinstance(frame, str)
                self.note(index, frame)


async def main() -> None:
    """Run the clients that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--events", type=int, required=True, help="that each client waits for")
    parser.add_argument("--timed", action="store_true", help="note the delay of each event")
    arguments = parser.parse_args()
    clients = Clients(arguments.events, arguments.timed, [0] * arguments.clients)
    async with anyio.create_task_group() as tasks:
        for index in range(arguments.clients):
            tasks.start_soon(clients.follow, index, arguments.url)
    result = {"end_s": time.time(), "cpu_s": time.process_time(), "events": sum(clients.num_seen)}
    if arguments.timed:
        result["p99_s"] = statistics.quantiles(clients.latencies_s, n=100)[-1]
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    anyio.run(main)
