"""Tests of the swarm of faults."""
