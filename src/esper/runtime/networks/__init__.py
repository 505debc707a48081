"""Networks of shipped tasks, written as anybody would: plain PyTorch modules without Esper."""
