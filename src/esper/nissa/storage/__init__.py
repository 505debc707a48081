"""What a run has on disk: its directory, journals, checksummed blocks and their recovery."""
