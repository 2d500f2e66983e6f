"""Benchmarks: scripts that print a table and write a dated result; see README.md here."""
