"""Small programs that stand for agents and workers in the tests of the local cloud."""
