"""Learning: policies, returns, rollouts and learners."""
