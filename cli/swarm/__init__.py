"""`bamboo chaos`: a seeded swarm of faults on a run of real processes, and its checkers.

Rule: nothing here is known to what it is let loose on; it uses what a user could use, and signals.
"""
