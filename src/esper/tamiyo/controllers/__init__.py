"""Controllers choose the envs' actions. The PPO controller is in simic, with its agent."""
