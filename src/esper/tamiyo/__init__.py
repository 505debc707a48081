"""The policy: signal tracker, observation features, action masks, network and controllers."""
