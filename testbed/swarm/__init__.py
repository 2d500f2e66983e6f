"""Plays the decision core from seeds, with orders of faults that a real run would hardly meet."""
