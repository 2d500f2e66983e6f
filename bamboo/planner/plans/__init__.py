"""Plans of a job: those that fit, what losses cost each of them, and which one is best."""
