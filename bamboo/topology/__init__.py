"""Pure values of who does what: slots, grid, virtual nodes, reduction tree, assignment."""
