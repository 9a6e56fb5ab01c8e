"""What was read and placed, as the frames of a `Trace`."""
