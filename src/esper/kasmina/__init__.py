"""The trained networks: hosts, their slots, and the seed modules that grow in them."""
