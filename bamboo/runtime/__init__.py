"""The processes that train. Each floor imports those below it alone:

node | check   a worker process; what is looked at outside of a run
state          transfers, prefetch, checkpoints, restores
step           operations of slots, the exchange, the optimizer
wire           messages between nodes
device         where operations run
"""
