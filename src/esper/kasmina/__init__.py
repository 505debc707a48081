"""The body: hosts, slots, and seeds that grow in them."""
