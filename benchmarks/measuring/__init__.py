"""What several benchmarks share: options, claims, reports, and the runs that they time."""
