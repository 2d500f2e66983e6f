"""A member that drops one peer after another while messages to it are half on their way.

`python -m tests.contracts.transport_dropper FOLDER ROUNDS`; a process of its own, for what it looks
for is the end of the process.
"""

import random
import sys
import threading
from pathlib import Path

import torch

from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.runtime.wire.frames import to_buffer
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.slots import Slot

HERE = Slot(pipeline=0, stage=0)
TENSORS = [to_buffer(torch.zeros(1 << 16)) for _ in range(20)]
"""5 MiB: a message of two frames."""
MESSAGES = 12


def drop_peers(folder: Path, rounds: int) -> None:
    """In some rounds the peer goes first, in some it is dropped first."""
    draw = random.Random(1)
    a = ZmqTransport(me=NodeId("a"), bind=f"ipc://{folder}/a")
    for number in range(rounds):
        name = NodeId(f"b{number}")
        b = ZmqTransport(me=name, bind=f"ipc://{folder}/{name}")
        a.reconfigure(generation=2 * number, members={NodeId("a"): a.endpoint, name: b.endpoint})
        b.reconfigure(generation=1, members={NodeId("a"): a.endpoint})
        for step in range(MESSAGES):
            key = MessageKey(kind="act", to=HERE, source=HERE, step=step)
            a.send(name, key, TENSORS, {})
        b.poll(0.5)  # until the first one is there
        threading.Event().wait(draw.random() * 0.004)  # anywhere within the sending
        ends = [b.close, lambda n=number: a.reconfigure(generation=2 * n + 1, members={})]
        draw.shuffle(ends)
        for end in ends:
            end()
    a.close()


if __name__ == "__main__":
    drop_peers(Path(sys.argv[1]), int(sys.argv[2]))
