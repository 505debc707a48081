"""Training: what lanes do to envs, what control decides, and the loop that joins them."""
