"""The plays of kills: our system, the oracle, figures, claims, and tables of recoveries."""
