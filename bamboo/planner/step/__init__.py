"""How long a step takes while nothing is lost, and what its nodes do and send in it."""
