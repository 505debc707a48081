"""What the learned policy is worth: the experiment, its claims, the document that shows them."""
