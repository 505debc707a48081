"""Selection pressure: rewards, agent, attribution, control and training."""
