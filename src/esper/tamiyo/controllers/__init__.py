"""Controllers: who decides for the envs. The learning one lives with its agent, in simic."""
