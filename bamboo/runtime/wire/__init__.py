"""Messages between nodes: frames, transport, keys, links, and what waits to be sent."""
