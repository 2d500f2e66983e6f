"""Everything of a run and its stack in an account of the user."""
