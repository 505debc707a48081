"""Task builders and data: what a run learns from, and the stream of batches that drives it.

sources    what a loader is told          downloads  fetching, checked and resumable
formats    files as tensors, no pickle    datasets   tensors of a task in three parts
loaders    finding and parting the data   synthetic  data made up
augment    random crops and flips         batches    SharedBatchIterator
tasks      the registry; loads torch only when data are wanted
"""
