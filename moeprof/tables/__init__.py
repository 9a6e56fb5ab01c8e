"""Tables with stated schemas, and the values that carry them across modules."""
