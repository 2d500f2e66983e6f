"""Other ways to use spot instances, in the same worlds: rivals, and the paper's rules."""
