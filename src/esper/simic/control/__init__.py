"""Op handlers: execute the ops of decisions on a model."""
