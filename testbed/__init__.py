"""What tests and benchmarks share: a store, real worker processes, faults, played worlds, and a
profile that was published."""
