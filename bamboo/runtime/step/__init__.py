"""One step of a node: operations of its slots, the exchange, the optimizer."""
