"""Numbers before machines: how a model is cut, what it needs, how long a step takes, its price."""
