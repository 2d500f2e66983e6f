"""`bamboo chaos`: a seeded swarm of faults on a run of real processes, and its checkers.

Rule: the run knows nothing of what is here. The swarm uses what a user could use, and signals.
"""
