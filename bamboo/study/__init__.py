"""What a job would hold, take and cost: plans, prices, profiles, simulations, reports."""
