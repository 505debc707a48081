"""What a run tells: gradients, anomalies and the events made of them. Never changes training."""
