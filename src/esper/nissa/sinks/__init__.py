"""Sinks: what gets the events of a run at its own pace, such as TensorBoard or Weights & Biases."""
