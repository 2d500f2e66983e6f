"""What tests and benchmarks share: a store, real worker processes, faults, and played worlds."""
