"""Profiles of jobs: measured, modelled on a GPU, or taken from a shape alone."""
