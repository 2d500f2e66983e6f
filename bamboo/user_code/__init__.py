"""The code of the user's that a run is made of: recorded at launch, kept with the run, loaded from
there by every worker."""
