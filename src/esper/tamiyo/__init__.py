"""The brain: signal tracker, observation features, action masks, policy network and controllers."""
