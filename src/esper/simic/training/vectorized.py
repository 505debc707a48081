"""The public entry point: puts engine, control, trainer and hub together and runs a job.

The names that tests and users may replace (`get_hub`, `RewardNormalizer`, `SharedBatchIterator`,
`PPOAgent`, `torch_amp`, `collect_per_layer_gradients`, `check_numerical_stability`) are looked up
here, when a run is put together.
"""



