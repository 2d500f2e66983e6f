"""What was trained, used: written for other programs, evaluated, sampled."""
