"""Task registry and data: data sets, their loaders, and the batches that the envs train on.

sources    the request to a loader           downloads  verified, resumable downloads
formats    reads files as tensors            datasets   train, validation and test tensors
loaders    locates, reads and splits data    synthetic  seeded synthetic data
augment    random crops and flips            batches    SharedBatchIterator
tasks      the task registry; imports torch only when data are loaded
"""
