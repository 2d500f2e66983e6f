"""Where operations run, and the facts of a machine that decide bits."""
