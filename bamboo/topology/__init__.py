"""Pure values of the division of work: slots, grid, virtual nodes, reduction tree, assignment."""
