"""Selection pressure: the agent, rewards, attribution, control, training and evaluation."""
