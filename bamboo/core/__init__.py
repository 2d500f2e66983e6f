"""The membership of a run as a pure state machine: what an event means, and why."""
