"""A peer in a process of its own, to be killed or stopped: it connects, says hello, and listens."""

import json
from collections.abc import Mapping
from pathlib import Path

from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.runtime.wire.keys import RunKeys
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.slots import Slot

HERE = Slot(pipeline=0, stage=0)


def main(config: Mapping[str, str]) -> int:
    """Write the endpoint to a file, greet the member `to`, and answer it until killed."""
    keys = RunKeys.from_dict(json.loads(config["keys"])) if config["keys"] else None
    me, to = NodeId(config["node"]), NodeId(config["to"])
    transport = ZmqTransport(me=me, bind=config["bind"], keys=keys, encrypt=bool(config["encrypt"]))
    file = Path(config["endpoint_file"])
    aside = file.with_suffix(".new")
    aside.write_text(transport.endpoint)
    aside.rename(file)
    transport.reconfigure(generation=1, members={to: config["endpoint"], me: transport.endpoint})
    greeting = MessageKey(kind="ack", to=HERE, source=HERE, step=7)
    transport.send(to, greeting, (), {})
    while True:
        for _ in transport.poll(1.0):
            transport.send(to, greeting, (), {})
