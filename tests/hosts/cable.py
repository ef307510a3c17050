"""cable.py: a cable between network namespaces, with delay, loss and rate, which can be cut. As root.

    cable.py IF IF...     joins these interfaces of this network namespace: a frame that one receives is sent on all others.
                          Reads commands from stdin, a line each, and answers "ok":
        delay MS          each frame arrives MS milliseconds later
        loss PERCENT      so many frames are lost, drawn with a fixed seed
        rate MBIT         so many bits a second, each way; 0: as fast as it goes
        cut, join         all frames are lost; none is
    cable.py --plain IF   the interface sends frames with checksums of their own, of one MTU at most: a frame that is
                          taken off an interface and sent on another one needs them

The kernels of small virtual machines have no sch_netem; this needs packet sockets alone. 20,000 frames a second.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
SETTERS = (0x17, 0x1F, 0x24, 0x2C)  # checksums of sent frames, TSO, GSO, GRO
ETH_P_ALL = 3
PACKET_OUTGOING = 4
MOST_WAITING = 100_000  # frames


def make_plain(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for setter in SETTERS:
            value = ctypes.create_string_buffer(struct.pack("II", setter, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


class Cable:
    def __init__(self, interfaces: list[str]) -> None:
        self.ends = []
        for interface in interfaces:
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            end.bind((interface, 0))
            end.setblocking(False)
            self.ends.append(end)
        self.delay = 0.0
        self.loss = 0.0
        self.rate = 0.0  # bytes a second
        self.is_cut = False
        self.draws = random.Random(1)
        self.waiting: list[tuple[float, int, socket.socket, bytes]] = []
        self.serial = 0
        self.free_at = {end: 0.0 for end in self.ends}  # when the sender's wire has sent all that it was given

    def command(self, line: str) -> None:
        name, *values = line.split()
        if name == "delay":
            self.delay = float(values[0]) / 1e3
        elif name == "loss":
            self.loss = float(values[0]) / 100
        elif name == "rate":
            self.rate = float(values[0]) * 1e6 / 8
        elif name in ("cut", "join"):
            self.is_cut = name == "cut"
        else:
            raise SystemExit(f"cable.py: no command '{name}'")

    def take(self, end: socket.socket) -> None:
        while True:
            try:
                frame, origin = end.recvfrom(65536)
            except (BlockingIOError, OSError):
                return
            lost = self.is_cut or (self.loss > 0 and self.draws.random() < self.loss)
            if origin[2] == PACKET_OUTGOING or lost or len(self.waiting) > MOST_WAITING:
                continue
            due = time.monotonic()
            if self.rate > 0:
                due = self.free_at[end] = max(due, self.free_at[end]) + len(frame) / self.rate
            for other in self.ends:
                if other is not end:
                    self.serial += 1
                    heapq.heappush(self.waiting, (due + self.delay, self.serial, other, frame))

    def deliver(self) -> None:
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, _, end, frame = heapq.heappop(self.waiting)
            try:
                end.send(frame)
            except OSError:
                pass  # the interface is down, or its queue is full: lost, as on a cable

    def run(self) -> None:
        commands = b""
        while True:
            wait = None if not self.waiting else max(0.0, self.waiting[0][0] - time.monotonic())
            readable, _, _ = select.select([sys.stdin, *self.ends], [], [], wait)
            if sys.stdin in readable:
                text = os.read(sys.stdin.fileno(), 4096)
                if not text:
                    return
                commands += text
                while b"\n" in commands:
                    line, commands = commands.split(b"\n", 1)
                    self.command(line.decode())
                    print("ok", flush=True)
            for end in readable:
                if end is not sys.stdin:
                    self.take(end)
            self.deliver()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        make_plain(sys.argv[2])
    else:
        Cable(sys.argv[1:]).run()
