"""What is looked at outside of a run: preflight, profile, reference, verify."""
