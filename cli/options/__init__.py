"""Options that several commands share: each parses, and hands on one value."""
