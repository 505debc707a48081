"""A process of websocket clients for the benches: prints how many events they got, and how late."""

import argparse
import json
import sys
import time

import anyio
from websockets.asyncio.client import connect


async def follow(url: str, num_events: int, latencies_s: list[float]) -> None:
    """Read until `num_events` events have come, noting the delay of each frame's last event."""
    num_seen = 0
    async with connect(url, compression=None, max_size=None) as client:
        await client.send('{"batch":true}')
        while '"is_subscribed":true' not in str(await client.recv()):
            pass  # the hello, and what was on its way before the subscription
        print("ready", flush=True)
        while num_seen < num_events:
            frame = await client.recv()
            assert isinstance(frame, str)
            now_s = time.time()
            num_seen += frame.count('{"event_type"')
            for line in frame.splitlines():
                begin = line.index('"ts":') + 5
                latencies_s.append(now_s - float(line[begin : line.index(",", begin)]))


async def main() -> None:
    """Run the clients that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--events", type=int, required=True, help="that each client waits for")
    arguments = parser.parse_args()
    latencies_s: list[float] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(arguments.clients):
            tasks.start_soon(follow, arguments.url, arguments.events, latencies_s)
    latencies_s.sort()
    p99_s = latencies_s[int(len(latencies_s) * 0.99)]
    json.dump({"end_s": time.time(), "p99_s": p99_s, "events": len(latencies_s)}, sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    anyio.run(main)
