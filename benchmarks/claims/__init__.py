"""The page of claims, docs/claims.md: what is claimed, and the results that show it."""
