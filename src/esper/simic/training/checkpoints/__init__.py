"""What a run saves and how it resumes: checkpoints, run state and grown networks."""
